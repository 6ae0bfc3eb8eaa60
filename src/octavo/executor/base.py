"""The port between the loop and whatever runs its plans."""

from __future__ import annotations

from typing import Protocol

from octavo.facts import Facts
from octavo.types import StepPlan, StepResult


class Executor(Protocol):
    """Runs plans strictly in the order they were submitted.

    After a result with `error`, plans that were already submitted are not run: each is answered, in order, by a result
    with an `error` of its own. (Their slots may not exist as they expect.) The scheduler announces every sequence of
    those plans afresh, so workers keep nothing of a failed step; its KV positions may hold anything.
    """

    facts: Facts

    def submit(self, plan: StepPlan) -> None:
        """Takes a plan; never waits for its result."""
        ...

    def collect(self) -> StepResult:
        """Waits for the oldest submitted plan. An exception here means that the executor itself is dead."""
        ...

    def prepare(self, block: int) -> bool:
        """Makes a little of the KV memory of blocks from `block` on ready to be written: what an idle engine does.

        Takes a few milliseconds at most. False when there is nothing left to do for now.
        """
        ...

    def close(self) -> None:
        """Gives back threads, processes and memory. Idempotent."""
        ...
