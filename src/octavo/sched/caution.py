"""How much of the future admission reserves: none until memory runs out, then all that answers are likely to need."""

from __future__ import annotations

from octavo.sched.sequence import Sequence

CALMER = 0.9
"""Each request that ends without another preemption takes a tenth of the caution away."""
SMOOTH = 0.1
"""Weight of the newest answer in the typical length."""


class Caution:
    """Answers grow, so a full house that was admitted by what it knew preempts, computes again, and preempts again.

    After a preemption for lack of blocks, admission asks for room for the rest of each answer: what its max_tokens
    leaves, or a typical answer where that is less. The reserve fades as requests end in peace.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._typical = 0.0
        self._ended = 0

    @property
    def active(self) -> bool:
        return self._level > 0.0

    def alarm(self) -> None:
        """Somebody was preempted to let another grow."""
        self._level = 1.0

    def ended(self, generated: int) -> None:
        """A request ended with so many tokens."""
        self._ended += 1
        weight = max(SMOOTH, 1 / self._ended)
        self._typical += (generated - self._typical) * weight
        self._level *= CALMER
        if self._level < 0.05:
            self._level = 0.0

    def reserve(self, seq: Sequence) -> int:
        """Positions to keep free for the rest of its answer."""
        left = seq.limit - len(seq.tokens)
        if self._ended:
            left = min(left, int(self._typical) + 1)
        return int(left * self._level)
