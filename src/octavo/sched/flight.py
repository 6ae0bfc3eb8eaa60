"""A step that was planned and has not been answered."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.sched.load import Load
from octavo.sched.sequence import Sequence
from octavo.types import SeqPlan

Row = tuple[Sequence, SeqPlan, int, int]
"""Who, what was planned, its epoch then, and how many tokens the row may sample."""


@dataclass(slots=True, eq=False)
class Flight:
    step: int
    rows: list[Row]
    freed: list[int]
    """Slots the plan told the workers to clear."""
    load: Load
    expected: float
    """Seconds it was expected to take when it was planned."""
    trial: bool = False
    """Planned to find out which request fails a step."""
    void: bool = False
    """An earlier step failed: whatever comes back does not count."""

    @property
    def decodes(self) -> bool:
        """Whether somebody gets a token by it."""
        return self.load.rows > 0
