"""Attention and state kinds, as the KV manager sees them: how many blocks, which can be dropped, what can be hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.errors import ConfigError
from octavo.facts import KVGroup
from octavo.sched.block_pool import Block, BlockPool


class Group(Protocol):
    """Layers that share one block table. Stateless: everything about a sequence is passed in."""

    index: int

    def need(self, positions: int) -> int:
        """Length of the table that holds positions [0, positions). Grows with `positions`."""
        ...

    def droppable(self, verified: int) -> int:
        """How many leading blocks no position from `verified` on will read. No draft is among `verified` positions."""
        ...

    def hit(self, name: Callable[[int], bytes], limit: int) -> list[Block]:
        """Blocks of the longest known prefix, at most `limit`. Takes no reference; valid until the next take."""
        ...

    def cut(self, start: int, count: int) -> int:
        """`count` from `start` on, shortened to where this kind wants a border; 0 for "all of it or nothing"."""
        ...


class FullGroup:
    """Every position is kept and read by every later one."""

    def __init__(self, index: int, *, block_size: int, pool: BlockPool) -> None:
        self.index = index
        self._block_size = block_size
        self._pool = pool

    def need(self, positions: int) -> int:
        return -(-positions // self._block_size)

    def droppable(self, verified: int) -> int:
        return 0

    def hit(self, name: Callable[[int], bytes], limit: int) -> list[Block]:
        blocks: list[Block] = []
        for i in range(limit):
            block = self._pool.lookup(self.index, name(i))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def cut(self, start: int, count: int) -> int:
        return count


KINDS: dict[str, type[FullGroup]] = {"full": FullGroup}


def make_group(facts: KVGroup, index: int, *, block_size: int, pool: BlockPool) -> Group:
    """The group object of a kind. Raises `ConfigError` for a kind this scheduler does not have."""
    kind = KINDS.get(facts.kind)
    if kind is None:
        raise ConfigError(f"KV group {facts.name!r}: got kind {facts.kind!r}, allowed: {', '.join(sorted(KINDS))}")
    return kind(index, block_size=block_size, pool=pool)
