"""The scheduler's numbers at a moment, from where they are kept."""

from __future__ import annotations

from octavo.sched.kv import KVManager
from octavo.sched.stats import SchedulerStats
from octavo.sched.totals import Totals


def snapshot(kv: KVManager, t: Totals, *, running: int, waiting: int) -> SchedulerStats:
    """Costs nothing that grows with sequences, blocks or tokens."""
    pool = kv.pool
    return SchedulerStats(
        running=running,
        waiting=waiting,
        blocks_used=pool.used,
        blocks_total=pool.total,
        blocks_cached=pool.cached,
        waste=kv.waste,
        steps=t.steps,
        prefix_queries=t.prefix_queries,
        prefix_hits=t.prefix_hits,
        preemptions=t.preemptions,
        computed_tokens=t.computed,
        redone_tokens=t.redone,
        drafts=t.drafts,
        draft_tokens=t.drafted,
        accepted_drafts=t.accepted,
        clamped=t.clamped,
        failed_steps=t.failed_steps,
        blocks_dropped=kv.dropped,
        groups=kv.group_stats(),
        steps_cut=t.cut,
        step_seconds=t.seconds,
        expected_seconds=t.expected,
        missed_seconds=t.missed,
    )
