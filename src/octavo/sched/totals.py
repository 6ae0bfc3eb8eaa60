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
    prompt: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    clamped: int = 0
    failed_steps: int = 0
