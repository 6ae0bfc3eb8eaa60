"""What a step holds, in the quantities that its time depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.facts import KVGroup


@dataclass(slots=True, eq=False)
class Load:
    """A step's work. Keys are counted for the mean layer: behind a window a layer reads and sees fewer."""

    tokens: int = 0
    rows: int = 0
    """Rows of logits."""
    read: float = 0.0
    """Keys that some token sees, each sequence's counted once."""
    seen: float = 0.0
    """Keys seen, summed over the tokens."""

    def plus(self, other: Load) -> Load:
        """Both together."""
        return Load(self.tokens + other.tokens, self.rows + other.rows, self.read + other.read, self.seen + other.seen)


class Scale:
    """Weighs a sequence's share of a step, knowing the model's windows."""

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        layers: dict[int | None, int] = {}
        for group in groups:
            layers[group.window] = layers.get(group.window, 0) + group.layers
        total = sum(layers.values())
        self._full = layers.pop(None, 0) / total
        self._windows = [(window, count / total) for window, count in layers.items() if window is not None]

    def chunk(self, start: int, count: int, *, rows: int) -> Load:
        """Positions [start, start + count) of one sequence."""
        read: float = start + count
        seen: float = count * start + count * (count + 1) // 2
        if self._windows:
            every, all_seen = read, seen
            read, seen = every * self._full, all_seen * self._full
            for window, share in self._windows:
                long = min(count, max(0, start + count - window))  # tokens that would see more than the window
                beyond = long * (start + count - window) - long * (long - 1) // 2
                read += share * min(every, window - 1 + count)
                seen += share * (all_seen - beyond)
        return Load(count, rows, read, seen)

    def decode(self, seqs: int, positions: int) -> Load:
        """One token each of `seqs` sequences that see `positions` in all. With windows a bound from above."""
        keys = positions * self._full
        for window, share in self._windows:
            keys += share * min(positions, seqs * window)
        return Load(seqs, seqs, keys, keys)
