"""The scheduler's numbers, as metrics and tests read them."""

from __future__ import annotations

import msgspec


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """One KV group's share of the pool."""

    name: str
    blocks_used: int
    """Blocks of this group that some sequence holds."""
    waste: float
    """As `SchedulerStats.waste`, of this group's blocks."""


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. Counters only grow; gauges (running, waiting, blocks_used, blocks_cached) are of this moment."""

    running: int
    waiting: int
    blocks_used: int
    """Blocks some sequence holds."""
    blocks_total: int
    """Without the null block."""
    blocks_cached: int
    """Blocks that can be hit, held or not."""
    waste: float
    """Share of the held blocks' slots that hold no token, averaged over the time they were held."""
    steps: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache, at first admission."""
    prefix_hits: int
    """How many of them were found."""
    preemptions: int
    computed_tokens: int
    """Positions planned, all together."""
    redone_tokens: int
    """Those computed again after a preemption, or lost in a step that failed."""
    drafts: int
    """Times tokens were drafted: rows with drafts."""
    draft_tokens: int
    accepted_drafts: int
    clamped: int
    """Requests whose max_tokens was cut to what max_model_len and the pool hold."""
    failed_steps: int
    blocks_dropped: int = 0
    """Blocks given back from behind a window while their sequences went on."""
    groups: tuple[GroupStats, ...] = ()
    steps_cut: int = 0
    """Steps whose prompts got fewer tokens so that decoding sequences need not wait longer than the target."""
    step_seconds: float = 0.0
    """What steps took, all together."""
    expected_seconds: float = 0.0
    """What they were expected to take when they were planned."""
    missed_seconds: float = 0.0
    """By how much the two differed, step by step, all taken as positive."""

    @property
    def kv_usage(self) -> float:
        return self.blocks_used / self.blocks_total if self.blocks_total else 0.0
