"""Counters that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Totals:
    steps: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    jumps: int = 0
    """Times a waiting sequence preempted somebody with a worse key."""
    parked: int = 0
    """Times one waited for a prefix that was being computed."""
    computed: int = 0
    redone: int = 0
    """Positions that were computed before and lost, or belonged to a step that failed."""
    drafts: int = 0
    """Rows with drafts."""
    drafted: int = 0
    """Tokens in them."""
    accepted: int = 0
    clamped: int = 0
    failed_steps: int = 0
    cut: int = 0
    """Steps in which a prompt got fewer tokens than the token budget had, for --target-itl-ms."""
    seconds: float = 0.0
    """What steps took, of those whose time is known."""
    expected: float = 0.0
    """What these were expected to take when they were planned."""
    missed: float = 0.0
    """The differences, all taken as positive."""

    def time_step(self, *, expected: float, actual: float) -> None:
        """Seconds of a step that was measured."""
        self.seconds += actual
        self.expected += expected
        self.missed += abs(actual - expected)
