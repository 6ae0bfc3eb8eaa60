"""What the scheduler is told at start: resolved numbers, no "auto"."""

from __future__ import annotations

import msgspec

from octavo.config.policy import DEFAULT_POLICY, POLICIES, PolicyName
from octavo.errors import ConfigError


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and policy of one scheduler. Raises `ConfigError` naming the field at fault."""

    max_num_seqs: int = 64
    """Sequences that may hold a slot at once."""
    max_num_batched_tokens: int = 512
    """Token budget of one step."""
    long_prefill_token_threshold: int = 0
    """Most tokens one prompt gets in a step; 0 leaves it to the budget."""
    target_itl_ms: float = 0.0
    """While somebody decodes, prompts are cut so that a step is expected to take no longer; 0: they are not."""
    enable_prefix_caching: bool = True
    policy: PolicyName = DEFAULT_POLICY
    """Who goes first, and who is preempted last."""
    chain: int = 1
    """Steps in flight that may hold the same sequence."""
    num_drafts: int = 0
    """Tokens the workers propose per decoding sequence and step; 0 without a drafter."""
    hash_key: bytes = b""
    """Secret of the prefix hashes, up to 64 bytes; empty draws one for this process."""
    max_model_len: int = 2**31 - 1
    """Longest prompt plus answer; the model's own limit holds too."""

    @property
    def chunk(self) -> int:
        """Most positions that a sequence computes in one step, or has in flight beyond what is verified."""
        prompt = min(self.long_prefill_token_threshold or self.max_num_batched_tokens, self.max_num_batched_tokens)
        return max(prompt, self.chain * (1 + self.num_drafts))

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "chain", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, allowed: 1 or more")
        for name in ("long_prefill_token_threshold", "num_drafts", "target_itl_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, allowed: 0 or more")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy: got {self.policy!r}, allowed: {', '.join(map(repr, POLICIES))}")
        if len(self.hash_key) > 64:
            raise ConfigError(f"hash_key: got {len(self.hash_key)} bytes, allowed: at most 64")
