"""The loop, for every depth: plan, submit, collect, update."""

from __future__ import annotations

from octavo.executor.base import Executor
from octavo.sched.refused import Refused
from octavo.sched.scheduler import Scheduler
from octavo.sched.stats import SchedulerStats
from octavo.types import Request, SeqOutput


class EngineCore:
    """Keeps up to `depth` steps in flight. Depth 1 is synchronous; 2 overlaps; S feeds a pipeline of S stages.

    Not thread-safe: one thread calls everything here.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, *, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.depth = depth
        self.flying = 0
        """Steps submitted and not yet collected."""

    @property
    def has_work(self) -> bool:
        """True while `step` has something to do: sequences, or steps in flight whose results nobody wants any more."""
        return self.flying > 0 or self.scheduler.has_work

    def add(self, request: Request) -> Refused | None:
        """Takes a request in; a `Refused` says why it can never be served."""
        return self.scheduler.add(request)

    def abort(self, seq_id: int) -> None:
        """Forgets a sequence at once, in whatever state it is. Unknown ids are ignored: it may just have finished."""
        self.scheduler.abort(seq_id)

    def step(self) -> list[SeqOutput]:
        """Fills the pipeline, then waits for the oldest step. Empty when nothing came out, or nothing was in flight."""
        while self.flying < self.depth and (plan := self.scheduler.schedule()) is not None:
            self.executor.submit(plan)
            self.flying += 1
        if not self.flying:
            return []
        self.flying -= 1
        return self.scheduler.update(self.executor.collect())

    def prepare(self) -> bool:
        """What there is to do without work, a few milliseconds of it; False when it is done."""
        return self.executor.prepare(self.scheduler.kv.pool.next_fresh)

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def close(self) -> None:
        self.executor.close()
