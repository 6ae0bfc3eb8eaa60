"""Layers dealt to KV groups whose blocks have equal bytes, so that all groups can take from one pool.

A group has `places` for layers, the same number in every group; what the layers do not fill is padding. Layers of one
kind (all positions, or a window of W) fill groups one after the other:

    18 layers, every 6th sees all, the others 512   ->   3 places: full [5 11 17], and five windows [0 1 2] [3 4 6] …
    10 that see all and 52 of 1,024                 ->   10 places: full, and six windows, the last with 2 layers

More places mean more padding; fewer mean more groups, each with block tables of its own to keep and to send.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

TYPICAL_LEN = 4096
"""Positions of a sequence for which padding is weighed: a padding place in a full group costs memory for all of them,
behind a window for no more than the window."""
GROUP_COST = 0.25
"""What one more group counts, in padding places of a full group."""


class Dealt(Struct, frozen=True):
    """One group: the layers it holds, in order, and the places left over."""

    window: int | None
    layers: tuple[int, ...]
    places: int


def deal(kinds: Sequence[int | None]) -> list[Dealt]:
    """`kinds`: each layer's window, None for all positions. Full groups come first."""
    of_kind: dict[int | None, list[int]] = {}
    for layer, window in enumerate(kinds):
        of_kind.setdefault(window, []).append(layer)
    order = sorted(of_kind, key=lambda window: (window is not None, -(window or 0)))
    most = max(len(layers) for layers in of_kind.values())
    places = min(range(1, most + 1), key=lambda n: (_cost(of_kind, n), -n))
    return [
        Dealt(window, tuple(of_kind[window][i : i + places]), places)
        for window in order
        for i in range(0, len(of_kind[window]), places)
    ]


def _cost(of_kind: dict[int | None, list[int]], places: int) -> float:
    cost = 0.0
    for window, layers in of_kind.items():
        groups = -(-len(layers) // places)
        cost += (groups * places - len(layers)) * min(window or TYPICAL_LEN, TYPICAL_LEN)
        cost += groups * GROUP_COST * TYPICAL_LEN
    return cost
