"""What the brain learns from the runner once, at start: plain numbers, so that scheduling needs no arrays."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

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

        Behind a window a step of `chunk` reads window - 1 positions before its first; so many positions in a row touch
        at most (their number + 2 * block_size - 2) // block_size blocks, wherever they begin.
        """
        blocks = -(-positions // block_size)
        if self.window is None:
            return blocks
        return min(blocks, (self.window - 1 + chunk + 2 * block_size - 2) // block_size)


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
