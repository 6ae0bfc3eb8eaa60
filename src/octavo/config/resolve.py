"""From wishes and facts to the configuration the engine runs with: no None, no "auto", frozen."""

from __future__ import annotations

import secrets

import msgspec

from octavo.config.args import EngineArgs
from octavo.config.scheduler import SchedulerConfig
from octavo.facts import Facts, most_positions


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs with."""

    model_names: tuple[str, ...]
    scheduler: SchedulerConfig
    depth: int
    max_queue: int
    max_model_len: int
    """Longest sequence, prompt and answer: the model's length or what the KV pool holds, whichever is less."""
    max_num_seqs: int
    max_num_batched_tokens: int


LEAST_TARGET_MS, MOST_TARGET_MS = 50.0, 100.0
"""Twenty and ten tokens a second to a stream while prompts come in: faster than most people read. On a slow machine
half of it made the first tokens of a burst wait several times as long, on a fast one hardly (docs/performance.md)."""
CHUNK = 192
"""Tokens of a prompt that a step should have time for, by the expected cost: 50 ms of the fastest machine measured."""
STEPS = 4
"""The least step fits so often in the default target: reading the weights once is a quarter of it at most."""


def default_target_ms(facts: Facts) -> float:
    """--target-itl-ms where the user has no wish, from the Program's cost; 0 where that is unknown."""
    if facts.step_cost is None:
        return 0.0
    cost = facts.step_cost
    chunk = round(1e3 * (cost.step + CHUNK * cost.token))
    least = round(STEPS * 1e3 * (cost.step + cost.row))
    return max(min(max(chunk, LEAST_TARGET_MS), MOST_TARGET_MS), least)


def resolve(args: EngineArgs, facts: Facts) -> EngineConfig:
    """Combine wishes with what the runner found out."""
    scheduler = args.scheduler()
    held = most_positions(facts.groups, facts.num_blocks - 1, block_size=facts.block_size, chunk=scheduler.chunk)
    longest = min(facts.model_len, held)
    scheduler = msgspec.structs.replace(
        scheduler,
        target_itl_ms=default_target_ms(facts) if args.target_itl_ms is None else args.target_itl_ms,
        hash_key=secrets.token_bytes(32),
        max_model_len=longest,
    )
    return EngineConfig(
        model_names=args.served_model_name or (facts.model_name,),
        scheduler=scheduler,
        depth=args.depth,
        max_queue=args.max_queue,
        max_model_len=longest,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )
