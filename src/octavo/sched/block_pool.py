"""KV blocks: who holds them, which are free, which hold a known prefix.

    free list, a ring through Block.prev / Block.next around a sentinel:

        sentinel <-> [no prefix] <-> [no prefix] <-> [oldest prefix] ... <-> [newest prefix] <-> sentinel
                     ^ taken from here; a released block without a hash goes back here
                                                        a released block with a hash goes here ^

The links live in the blocks, so that a hit on a free block takes it out of the middle in O(1) and no call allocates.
Blocks never used yet are not in the ring: they are a counter (`_fresh`), taken before any known prefix is given up, so
a pool of a million blocks costs nothing at start.
"""

from __future__ import annotations

from collections.abc import Iterable

NULL_BLOCK = 0


class Block:
    """One block of KV memory. `prev` and `next` belong to the pool."""

    __slots__ = ("group", "hash", "id", "next", "prev", "ready", "refs")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.refs = 0
        self.group = 0
        self.hash: bytes | None = None
        self.ready = 0
        """The step whose landing makes what was published real. Outlives the hash, until the block is taken anew."""
        self.prev: Block = self
        self.next: Block = self

    def __repr__(self) -> str:
        return (
            f"Block({self.id}, refs={self.refs}, ready={self.ready}, hash={self.hash.hex()[:8] if self.hash else None})"
        )


class BlockPool:
    """`num_blocks` counts the null block (id 0), which is never handed out. free + held = num_blocks - 1, always."""

    def __init__(self, num_blocks: int, *, num_groups: int = 1) -> None:
        assert num_blocks >= 1
        self.total = num_blocks - 1
        self.free = self.total
        """Blocks nobody holds; those that still know a prefix are among them."""
        self.releases = 0
        """Grows whenever a block becomes free: what did not fit need not be tried again before it changes."""
        self.null = Block(NULL_BLOCK)
        self._blocks: list[Block] = [self.null]
        self._fresh = self.total
        self._ring = Block(-1)
        self._cached: list[dict[bytes, Block]] = [{} for _ in range(num_groups)]
        self.used_by = [0] * num_groups
        """Held blocks of each group; a block belongs to the group that took it last."""

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def next_fresh(self) -> int:
        """The id that the next block never used yet will have."""
        return len(self._blocks)

    @property
    def cached(self) -> int:
        return sum(len(c) for c in self._cached)

    def lookup(self, group: int, digest: bytes) -> Block | None:
        """The block that holds this prefix. Only valid until the next `take`, unless acquired."""
        return self._cached[group].get(digest)

    def acquire(self, block: Block) -> None:
        """One more holder of a block that was looked up."""
        if block.refs == 0:
            self._unlink(block)
            self.free -= 1
            self.used_by[block.group] += 1
        block.refs += 1

    def take(self, count: int, *, group: int = 0) -> list[Block]:
        """`count` blocks with unknown contents, one holder each, for a group. The caller has checked `free`."""
        assert count <= self.free, (count, self.free)
        taken = []
        ring = self._ring
        for _ in range(count):
            block = ring.next
            if self._fresh and (block is ring or block.hash is not None):
                block = Block(len(self._blocks))
                self._blocks.append(block)
                self._fresh -= 1
            else:
                self._unlink(block)
                self.unpublish(block)
                block.ready = 0
            block.refs = 1
            block.group = group
            taken.append(block)
        self.free -= count
        self.used_by[group] += count
        return taken

    def release(self, blocks: Iterable[Block]) -> None:
        """One holder less, in the given order: pass a table backwards, so that a prefix outlives what follows it."""
        ring = self._ring
        for block in blocks:
            if block is self.null:
                continue
            block.refs -= 1
            assert block.refs >= 0, block
            if block.refs == 0:
                before, after = (ring, ring.next) if block.hash is None else (ring.prev, ring)
                block.prev, block.next = before, after
                before.next = after.prev = block
                self.free += 1
                self.used_by[block.group] -= 1
                self.releases += 1

    def publish(self, block: Block, digest: bytes, *, step: int) -> bool:
        """Makes a held block findable in its group from step `step` on. False where another block has this prefix."""
        cached = self._cached[block.group]
        if digest in cached:
            return False
        cached[digest] = block
        block.hash, block.ready = digest, step
        return True

    def unpublish(self, block: Block) -> None:
        """Forgets what a block holds; holders keep it."""
        if block.hash is not None:
            del self._cached[block.group][block.hash]
            block.hash = None

    def reset(self) -> None:
        """Forgets every prefix; holders keep their blocks."""
        for cached in self._cached:
            for block in cached.values():
                block.hash = None
            cached.clear()

    def _unlink(self, block: Block) -> None:
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = block

    def check(self) -> None:
        """Raises AssertionError where the pool contradicts itself. O(pool): for tests."""
        seen = set()
        block = self._ring.next
        while block is not self._ring:
            assert block.refs == 0 and block.next.prev is block and block.prev.next is block, block
            assert block.id not in seen, block
            seen.add(block.id)
            block = block.next
        assert len(seen) + self._fresh == self.free, (len(seen), self._fresh, self.free)
        assert len(self._blocks) + self._fresh == self.total + 1
        used_by = [0] * len(self.used_by)
        for block in self._blocks[1:]:
            used_by[block.group] += block.refs > 0
            assert (block.refs == 0) == (block.id in seen), block
            assert block.hash is None or self._cached[block.group].get(block.hash) is block, block
        assert used_by == self.used_by, (used_by, self.used_by)
        for cached in self._cached:
            for digest, block in cached.items():
                assert block.hash == digest, block
