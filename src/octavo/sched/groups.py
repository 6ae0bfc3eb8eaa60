"""Attention and state kinds, as the KV manager sees them: how many blocks, which can be dropped, what can be hit.

table of a full group    | b | b | b | b | b | b | b |
table of a window group  | 0 | 0 | 0 | b | b | b | b |        0: the null block; entries keep their index
                                     ^ droppable(verified)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.facts import FullSpan, KVGroup, SlidingSpan, checked_kind
from octavo.sched.block_pool import Block, BlockPool

Name = Callable[[int], bytes]
"""The name of a prefix's block, by index."""


class Finder(Protocol):
    """One look-up of one group. Takes no reference; valid until the next take. Looks at each block once."""

    def fit(self, limit: int) -> int:
        """The greatest length in blocks, at most `limit`, from which this group can go on. Limits never grow."""
        ...

    def blocks(self, length: int) -> list[Block]:
        """The table of that length, a length that `fit` gave; the null block where nothing is needed."""
        ...


class Group(Protocol):
    """Layers that share one block table. Stateless: everything about a sequence is passed in."""

    index: int
    windowed: bool
    """Whether `droppable` is ever above 0."""

    def need(self, positions: int) -> int:
        """Length of the table that holds positions [0, positions), dropped entries included."""
        ...

    def peak(self, start: int, end: int) -> int:
        """Most blocks held at once while [start, end) is computed in chunks and what can be dropped is dropped."""
        ...

    def droppable(self, verified: int) -> int:
        """How many leading blocks no position from `verified` on will read. No draft is among `verified` positions."""
        ...

    def find(self, name: Name) -> Finder:
        """A look-up of the prefix with these block names."""
        ...

    def cut(self, start: int, count: int) -> int:
        """`count` from `start` on, shortened to where this kind wants a border; 0 for "all of it or nothing"."""
        ...


class FullGroup(FullSpan):
    """Finds prefixes from the first block on."""

    def __init__(self, facts: KVGroup, index: int, *, block_size: int, pool: BlockPool, chunk: int) -> None:
        super().__init__(facts, block_size=block_size, chunk=chunk)
        self.index = index
        self._pool = pool

    def find(self, name: Name) -> Finder:
        return _Prefix(name, index=self.index, pool=self._pool)

    def cut(self, start: int, count: int) -> int:
        return count


class SlidingGroup(SlidingSpan):
    """Finds runs of blocks as long as the window."""

    def __init__(self, facts: KVGroup, index: int, *, block_size: int, pool: BlockPool, chunk: int) -> None:
        super().__init__(facts, block_size=block_size, chunk=chunk)
        self.index = index
        self._pool = pool

    def find(self, name: Name) -> Finder:
        return _Window(name, group=self, pool=self._pool, block_size=self.block_size)

    def cut(self, start: int, count: int) -> int:
        return count


class _Prefix:
    """All blocks from the first on."""

    def __init__(self, name: Name, *, index: int, pool: BlockPool) -> None:
        self._name = name
        self._index = index
        self._pool = pool
        self._found: list[Block] | None = None

    def fit(self, limit: int) -> int:
        if self._found is None:
            self._found = []
            for i in range(limit):
                block = self._pool.lookup(self._index, self._name(i))
                if block is None:
                    break
                self._found.append(block)
        return min(limit, len(self._found))

    def blocks(self, length: int) -> list[Block]:
        return (self._found or [])[:length]


class _Window:
    """The last blocks before the length: searched backwards from the limit, a run of known blocks long enough.

    [low, length) is known. Where the block before `low` is missing, no length from `low` on will do: the next candidate
    ends there, and the search goes on from where it stands.
    """

    def __init__(self, name: Name, *, group: SlidingGroup, pool: BlockPool, block_size: int) -> None:
        self._name = name
        self._group = group
        self._pool = pool
        self._block_size = block_size
        self._low = 2**62
        self._found: dict[int, Block] = {}

    def fit(self, limit: int) -> int:
        length, low = limit, min(self._low, limit)
        while low > self._first(length):
            block = self._pool.lookup(self._group.index, self._name(low - 1))
            low -= 1
            if block is None:
                length = low
            else:
                self._found[low] = block
        self._low = low
        return length

    def _first(self, length: int) -> int:
        """The first block that the position after `length` blocks reads."""
        return self._group.droppable(length * self._block_size)

    def blocks(self, length: int) -> list[Block]:
        first = min(self._first(length), length)
        return [self._pool.null] * first + [self._found[i] for i in range(first, length)]


KINDS: dict[str, type[FullGroup] | type[SlidingGroup]] = {"full": FullGroup, "sliding": SlidingGroup}


def make_group(facts: KVGroup, index: int, *, block_size: int, pool: BlockPool, chunk: int) -> Group:
    """The group object of a kind. `chunk`: most positions between what is verified and the end of a step.

    Raises `ConfigError` for a kind this scheduler does not have.
    """
    return checked_kind(KINDS, facts)(facts, index, block_size=block_size, pool=pool, chunk=chunk)
