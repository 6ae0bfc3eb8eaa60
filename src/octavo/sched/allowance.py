"""How many tokens of prompts a step may take beside sequences that decode, so that their gap keeps a target.

With nobody decoding there is no such limit: the token budget rules alone.
"""

from __future__ import annotations

from octavo.facts import KVGroup
from octavo.sched.load import Load, Scale
from octavo.sched.pace import Pace

TILE = 8
"""Tokens: chunks that time cuts are whole multiples, as the kernels' register tiles like. No bit depends on it."""
LEAST = 2 * TILE
"""Tokens of prompts that a step takes where there are so many, whatever they take."""
SHARE = 0.25
"""Prompts get at least this part of what the decoding rows take, where those alone are near the target or over it."""


class Allowance:
    """Seconds of one step, and its load so far.

    A step that is open takes LEAST tokens of the prompt that is next, whatever that takes. So each step with prompts
    brings one of them on, and as they take turns nobody starves.
    """

    def __init__(self, groups: tuple[KVGroup, ...], pace: Pace, *, target: float) -> None:
        """`target`: seconds; 0 sets no limit."""
        self._pace = pace
        self._scale = Scale(groups)
        self.target = target
        self.begin()

    def begin(self) -> None:
        """A new step."""
        self.load = Load()
        self.limit = 0.0
        """Seconds the step may take; 0: no limit."""
        self.cut = False
        """A prompt got fewer tokens than the token budget had for it."""

    def decode(self, seqs: int, positions: int) -> None:
        """So many rows of one token, which see `positions` in all."""
        self.load = self.load.plus(self._scale.decode(seqs, positions))

    def add(self, start: int, count: int, *, rows: int) -> None:
        """A row of any kind."""
        self.load = self.load.plus(self._scale.chunk(start, count, rows=rows))

    def close_decodes(self, *, decoding: bool) -> None:
        """Prompts come next; `decoding`: somebody waits for the end of this step."""
        if self.target and decoding:
            self.limit = max(self.target, (1 + SHARE) * self.seconds)

    @property
    def seconds(self) -> float:
        """Expected of the step as it is."""
        return self._pace.seconds(self.load)

    def fit(self, start: int, count: int, *, scored: bool) -> int:
        """How many of `count` tokens from `start` on are taken: all of them, or whole tiles, at least LEAST."""
        if not self.limit or count <= LEAST or self._fits(start, count, scored=scored):
            return count
        self.cut = True
        low, high = LEAST // TILE, -(-count // TILE)  # low tiles are taken, high do not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(start, middle * TILE, scored=scored) else (low, middle)
        return low * TILE

    def spent(self, start: int) -> bool:
        """Whether no more of a prompt fits at this context."""
        return bool(self.limit) and not self._fits(start, LEAST, scored=False)

    def _fits(self, start: int, count: int, *, scored: bool) -> bool:
        more = self._scale.chunk(start, count, rows=count if scored else 1)
        return self._pace.seconds(self.load.plus(more)) <= self.limit
