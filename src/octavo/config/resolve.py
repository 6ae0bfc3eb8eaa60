"""From wishes and facts to the configuration the engine runs with: no None, no "auto", frozen."""

from __future__ import annotations

import secrets

import msgspec

from octavo.config.args import EngineArgs
from octavo.config.scheduler import SchedulerConfig
from octavo.facts import Facts


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with."""

    model_names: tuple[str, ...]
    scheduler: SchedulerConfig
    depth: int
    max_queue: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


def resolve(args: EngineArgs, facts: Facts) -> EngineConfig:
    """Combine wishes with what the runner found out. `facts.model_len` already respects memory."""
    tokens = args.step_tokens
    return EngineConfig(
        model_names=args.served_model_name or (facts.model_name,),
        scheduler=SchedulerConfig(
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=tokens,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            enable_prefix_caching=args.enable_prefix_caching,
            policy=args.scheduling_policy,
            chain=args.chain,
            hash_key=secrets.token_bytes(32),
            max_model_len=facts.model_len,
        ),
        depth=args.depth,
        max_queue=args.max_queue,
        max_model_len=facts.model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=tokens,
    )
