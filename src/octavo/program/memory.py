"""Places for buffers in one arena: those alive at the same time never overlap. Sizes alone, before anything loads."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from msgspec import Struct

ALIGN = 64


class Lifetime(Struct, frozen=True):
    """`size` bytes, alive from op `first` to op `last`, both included (an op's inputs and outputs live together)."""

    size: int
    first: int
    last: int


def plan(items: Sequence[Lifetime], *, align: int = ALIGN) -> tuple[list[int], int]:
    """An offset for each item and the arena's size.

    Largest first, each at the lowest gap among those already placed that live at the same time: for the chains that
    models are, within a few percent of the largest sum of live sizes.
    """
    offsets = [0] * len(items)
    placed: list[tuple[int, int, Lifetime]] = []
    total = 0
    order = sorted(range(len(items)), key=lambda i: (-items[i].size, items[i].first, i))
    for i in order:
        item = items[i]
        at = 0
        for begin, end, other in placed:  # sorted by begin
            if other.last < item.first or item.last < other.first:
                continue
            if begin - at >= item.size:
                break
            at = max(at, -(-end // align) * align)
        offsets[i] = at
        insort(placed, (at, at + item.size, item), key=lambda p: p[0])
        total = max(total, at + item.size)
    return offsets, -(-total // align) * align


def peak(items: Sequence[Lifetime]) -> int:
    """The largest sum of sizes alive at one op: no plan can be smaller."""
    ends = sorted({i.first for i in items})
    return max((sum(i.size for i in items if i.first <= at <= i.last) for at in ends), default=0)
