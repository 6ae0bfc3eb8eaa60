"""What the brain learns from the runner once, at start: plain numbers, so that scheduling needs no arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from octavo.errors import ConfigError

Row = TypeVar("Row")

UNBOUNDED = 2**31 - 1
"""Positions, where a pool sets no limit (all groups have windows)."""


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. Blocks of all groups have equal bytes and come from one pool."""

    name: str
    kind: str
    """"full" (every position is kept), "sliding" (the last `window` are read); "state" comes with its families."""
    layers: int
    window: int | None = None
    """A position sees itself and the `window` - 1 before it; None: all before it."""

    def peak(self, positions: int, *, block_size: int, chunk: int) -> int:
        """Most blocks at once while a sequence computes `positions`, at most `chunk` of them a step.

        Raises `ConfigError` for a kind that SPANS lacks.
        """
        return span_of(self, block_size=block_size, chunk=chunk).peak(0, positions)


class FullSpan:
    """Blocks of a sequence in a group where every position is kept and read by every later one."""

    windowed = False

    def __init__(self, group: KVGroup, *, block_size: int, chunk: int) -> None:
        self.block_size = block_size

    def need(self, positions: int) -> int:
        """Length of the table that holds positions [0, positions), dropped entries included."""
        return -(-positions // self.block_size)

    def droppable(self, verified: int) -> int:
        """How many leading blocks no position from `verified` on will read."""
        return 0

    def peak(self, start: int, end: int) -> int:
        """Most blocks held at once while [start, end) is computed in chunks and what can be dropped is dropped."""
        return -(-end // self.block_size)


class SlidingSpan:
    """A position reads itself and the `window` - 1 before it; what lies further back is dropped."""

    windowed = True

    def __init__(self, group: KVGroup, *, block_size: int, chunk: int) -> None:
        if group.window is None or group.window < 1:
            raise ConfigError(f"KV group {group.name!r}: got window {group.window!r}, allowed: 1 or more")
        self.block_size = block_size
        self.window = group.window
        # A step of `chunk` reads window - 1 positions before its first; so many positions in a row touch at most
        # (their number + 2 * block_size - 2) // block_size blocks, wherever they begin.
        self._most = (group.window - 1 + chunk + 2 * block_size - 2) // block_size

    def need(self, positions: int) -> int:
        return -(-positions // self.block_size)

    def droppable(self, verified: int) -> int:
        return max(0, verified - self.window + 1) // self.block_size

    def peak(self, start: int, end: int) -> int:
        return min(-(-end // self.block_size) - self.droppable(start), self._most)


SPANS: dict[str, type[FullSpan] | type[SlidingSpan]] = {"full": FullSpan, "sliding": SlidingSpan}
"""How many blocks a kind of group holds: the memory plan and the scheduler count with the same row."""


def kind_of(window: int | None) -> str:
    """The kind of a group of attention layers with this window."""
    return "full" if window is None else "sliding"


def span_of(group: KVGroup, *, block_size: int, chunk: int) -> FullSpan | SlidingSpan:
    """`chunk`: most positions between what is verified and the end of a step. Raises `ConfigError`."""
    return checked_kind(SPANS, group)(group, block_size=block_size, chunk=chunk)


def checked_kind(rows: Mapping[str, Row], group: KVGroup) -> Row:
    """The row of a group's kind. Raises `ConfigError` where there is none."""
    if (row := rows.get(group.kind)) is None:
        raise ConfigError(f"KV group {group.name!r}: got kind {group.kind!r}, allowed: {', '.join(sorted(rows))}")
    return row


def peak_blocks(groups: Iterable[KVGroup], positions: int, *, block_size: int, chunk: int) -> int:
    """Most blocks that a sequence of so many positions holds at once, over all groups."""
    return sum(group.peak(positions, block_size=block_size, chunk=chunk) for group in groups)


def most_positions(groups: Iterable[KVGroup], num_blocks: int, *, block_size: int, chunk: int) -> int:
    """Longest sequence that `num_blocks` blocks (without the null block) hold when it is alone."""
    groups = tuple(groups)

    def fits(blocks: int) -> bool:
        return peak_blocks(groups, blocks * block_size, block_size=block_size, chunk=chunk) <= num_blocks

    low, high = 0, UNBOUNDED // block_size
    if fits(high):
        return UNBOUNDED
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * block_size


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that parts of a step are expected to take, by the Program's cost; steps that run correct them.

    A key counts for the mean layer of all KV groups.
    """

    step: float
    """However small it is: weights are read once."""
    token: float
    """Each token more."""
    row: float
    """Each row of logits more."""
    read: float
    """Each position of K and V that a sequence reads."""
    seen: float
    """Each key that a token sees."""


UNKNOWN_COST = StepCost(step=2e-3, token=5e-4, row=1e-4, read=2e-7, seen=2e-8)
"""Of a small model, where nobody knows better."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The model and executor as the scheduler and the front end see them."""

    model_name: str
    architecture: str
    vocab_size: int
    model_len: int
    """Longest sequence the model (its rope, its config) supports."""
    groups: tuple[KVGroup, ...]
    block_size: int
    block_bytes: int
    """Bytes of one block, the same in every group: 2 * layers * block_size * kv_heads * head_dim * itemsize."""
    num_blocks: int
    """Of all groups together. Block 0 is the null block and is never handed out."""
    eos_ids: tuple[int, ...]
    isa: str = ""
    threads: int = 1
    weights_bytes: int = 0
    load_seconds: dict[str, float] = {}
    """Start-up time by phase."""
    step_cost: StepCost | None = None
    """None where nobody computes it (the fake executor)."""
