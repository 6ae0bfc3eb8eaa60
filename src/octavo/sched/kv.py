"""The KV manager: block tables, prefix hits, publishing, and the account of what is held and wasted."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.facts import Facts, most_positions
from octavo.sched.block_pool import Block, BlockPool
from octavo.sched.groups import make_group
from octavo.sched.prefix import PrefixHasher, Promises
from octavo.sched.sequence import NEVER, Sequence
from octavo.sched.stats import GroupStats


@dataclass(slots=True, eq=False)
class Hit:
    """What the cache holds of a sequence. Nothing is acquired; valid until blocks are taken."""

    length: int
    """Positions, a multiple of the block size; at least one known token is left to compute."""
    blocks: list[list[Block]]
    """Per group, the tables of that length: null blocks first where a window does not reach back."""
    missing: bytes | None
    """The name of the next full block, which nobody has; None where there is no next full block."""
    held: int = 0
    """Blocks it brings, over all groups."""
    revived: int = 0
    """Those among them that nobody holds at present: free ones that this hit would take."""


class KVManager:
    """Owns the pool. The only place that changes a sequence's tables."""

    def __init__(self, facts: Facts, *, caching: bool, hash_key: bytes = b"", chunk: int = 1) -> None:
        """`chunk`: most positions between what is verified of a sequence and the end of its step."""
        self.block_size = facts.block_size
        self.caching = caching
        self.pool = BlockPool(facts.num_blocks, num_groups=len(facts.groups))
        self.groups = [
            make_group(group, i, block_size=facts.block_size, pool=self.pool, chunk=chunk)
            for i, group in enumerate(facts.groups)
        ]
        self._names = [group.name for group in facts.groups]
        self._windowed = [group for group in self.groups if group.windowed]
        self._lead = next((group.index for group in self.groups if not group.windowed), 0)
        """A group that needs every block where there is one: how far it knows a prefix is how far anybody computed."""
        self.max_positions = most_positions(facts.groups, self.pool.total, block_size=facts.block_size, chunk=chunk)
        """Longest sequence the pool holds when it is alone."""
        self.hasher = PrefixHasher(hash_key or os.urandom(32), block_size=facts.block_size)
        self.promises = Promises()
        self.held = 0
        """Positions computed in somebody's tables, a shared one counted for each holder."""
        self.allocated = 0
        """Slots in somebody's tables, counted the same way."""
        self.dropped = 0
        """Blocks given back from behind a window, so far."""
        self._wasted_slots = 0.0
        """Slot-seconds, as those below."""
        self._used_slots = [0.0] * len(self.groups)
        self._since = 0.0
        self._unlanded: deque[Block] = deque()
        self.nothing: list[list[int]] = [[] for _ in self.groups]
        """No new blocks, one list per group; shared by all plans, never changed."""

    # -- how much -----------------------------------------------------------------------------------------------------
    def blocks_for(self, positions: int, *, start: int = 0) -> int:
        """Most blocks at once, over all groups, while [start, positions) is computed."""
        return sum(group.peak(start, positions) for group in self.groups)

    def lacking(self, seq: Sequence, positions: int) -> int:
        """Blocks to take before `seq` can compute up to `positions` in one step."""
        if positions <= seq.capacity:
            return 0
        return sum(max(0, g.need(positions) - len(t)) for g, t in zip(self.groups, seq.tables, strict=True))

    def owing(self, seq: Sequence, positions: int) -> int:
        """Most blocks by which `seq` will grow until it has computed up to `positions`, in whatever steps.

        What it can drop now counts as dropped: the answer does not change when that is done.
        """
        if positions <= seq.capacity:
            return 0
        start = min(seq.computed, len(seq.tokens))
        owed = 0
        for group, table in zip(self.groups, seq.tables, strict=True):
            owed += max(0, group.peak(start, positions) - len(table) + group.droppable(start))
        return owed

    def room(self, seq: Sequence) -> int:
        """Positions `seq` could compute now, in its tables and the free blocks."""
        return seq.capacity - seq.computed + self.pool.free // len(self.groups) * self.block_size

    def cut(self, seq: Sequence, count: int) -> int:
        for group in self.groups:
            count = group.cut(seq.computed, count)
        return count

    # -- tables -------------------------------------------------------------------------------------------------------
    def lookup(self, seq: Sequence) -> Hit:
        """The longest prefix on which all groups agree; less than what is known, since logits need a position."""
        limit = (len(seq.tokens) - 1) // self.block_size
        if not self.caching or seq.wants_scores:
            return Hit(0, [[] for _ in self.groups], None)

        def name(i: int) -> bytes:
            return self.hasher.name(seq, i)

        finders = [group.find(name) for group in self.groups]
        length = reach = finders[self._lead].fit(limit)
        while True:
            before = length
            for finder in finders:
                length = finder.fit(length)
            if length == before:
                break
        if self._windowed and self.groups[self._lead].windowed:
            reach = length
        blocks = [finder.blocks(length) for finder in finders]
        null = self.pool.null
        held = [block.refs for table in blocks for block in table if block is not null]
        missing = name(reach) if reach < limit else None
        return Hit(length * self.block_size, blocks, missing, len(held), held.count(0))

    def knows(self, name: bytes) -> bool:
        """Whether somebody has computed this block (a `Hit.missing`) by now."""
        return self.pool.lookup(self._lead, name) is not None

    def attach(self, seq: Sequence, hit: Hit) -> None:
        """Gives a sequence without blocks its hit."""
        null = self.pool.null
        for g, blocks in enumerate(hit.blocks):
            dropped = 0
            for block in blocks:
                if block is null:
                    dropped += 1
                else:
                    self.pool.acquire(block)
            seq.tables[g] = list(blocks)
            seq.dropped[g] = dropped
            seq.published[g] = len(blocks)
        seq.computed = seq.capacity = hit.length
        seq.next_full = hit.length + self.block_size if self.caching else NEVER
        self.held += hit.length
        self.allocated += hit.length

    def grow(self, seq: Sequence, positions: int) -> list[list[int]]:
        """Takes what `positions` lack; returns the new ids of each group. The caller has checked the room."""
        if positions <= seq.capacity:
            return self.nothing
        new: list[list[int]] = []
        for group, table in zip(self.groups, seq.tables, strict=True):
            blocks = self.pool.take(max(0, group.need(positions) - len(table)), group=group.index)
            table += blocks
            new.append([block.id for block in blocks])
        before = seq.capacity
        seq.capacity = min(map(len, seq.tables)) * self.block_size
        self.allocated += seq.capacity - before
        return new

    def drop_behind(self, seq: Sequence) -> None:
        """Gives back leading blocks that no later position reads (windows). Null blocks keep their places.

        Steps in flight may still read them: whoever takes them writes in a later step. So never between the planning of
        a row and the end of its plan.
        """
        for group in self._windowed:
            g = group.index
            verified = min(seq.computed, len(seq.tokens))
            first, end = seq.dropped[g], group.droppable(verified)
            if end > first:
                table = seq.tables[g]
                self.pool.release(reversed(table[first:end]))
                table[first:end] = [self.pool.null] * (end - first)
                seq.dropped[g] = end
                self.dropped += end - first

    def release(self, seq: Sequence) -> None:
        """Takes everything from a sequence. Steps in flight may still write there; the next holder writes later."""
        self.held -= seq.computed
        self.allocated -= seq.capacity
        for g, table in enumerate(seq.tables):
            self.pool.release(reversed(table))
            seq.tables[g] = []
            seq.dropped[g] = seq.published[g] = 0
        if seq.promised:
            self.promises.drop(seq)
        seq.computed = seq.capacity = 0
        seq.next_full = NEVER

    def victims_needed(
        self, victims: Iterable[Sequence], *, enough: int, hit: Hit | None = None, owed: bool = False
    ) -> int:
        """How many of the first victims must go so that `enough` blocks become free; 0 when all of them do not do.

        Exact where victims share blocks. Blocks of `hit` do not count: they would be taken at once. With `owed`, what a
        victim is still owed counts too. Reads tables from the end, where blocks are private, until it knows.
        """
        if enough <= 0:
            return 1
        freed = 0
        kept = {block.id for blocks in hit.blocks for block in blocks} if hit is not None else frozenset()
        counted: dict[int, int] = {}
        for number, victim in enumerate(victims, 1):
            if owed:
                freed += self.owing(victim, len(victim.tokens) + victim.pending)
                if freed >= enough:
                    return number
            for table, dropped in zip(victim.tables, victim.dropped, strict=True):
                for block in reversed(table[dropped:] if dropped else table):
                    seen = counted[block.id] = counted.get(block.id, 0) + 1
                    if block.refs == seen and block.id not in kept:
                        freed += 1
                        if freed >= enough:
                            return number
        return 0

    # -- the prefix cache ---------------------------------------------------------------------------------------------
    def publish(self, seq: Sequence, step: int) -> None:
        """Makes full blocks of known tokens findable. `step` is the last that writes in them, in flight or planned."""
        full = min(seq.computed, len(seq.tokens)) // self.block_size
        for g, table in enumerate(seq.tables):
            for i in range(seq.published[g], full):
                block, name = table[i], self.hasher.name(seq, i)
                if block.hash is None and self.pool.publish(block, name, step=step):
                    self._unlanded.append(block)
                if len(self.promises):
                    self.promises.keep(name)
            seq.published[g] = max(full, seq.published[g])
        seq.next_full = (min(seq.published) + 1) * self.block_size

    def promise(self, seq: Sequence) -> None:
        """Says that `seq`, which has a place, will go on to compute the full blocks of what it knows."""
        if self.caching and not seq.promised:
            full = len(seq.tokens) // self.block_size
            self.promises.make(seq, [self.hasher.name(seq, i) for i in range(min(seq.published), full)])

    def landed(self, step: int) -> None:
        """Step `step` is done: what it wrote is real."""
        unlanded = self._unlanded
        while unlanded and unlanded[0].ready <= step:
            unlanded.popleft()

    def planned(self, positions: int) -> None:
        """A step with so many positions was planned, over all sequences."""
        self.held += positions

    def lasted(self, now: float) -> None:
        """Enters what is held as held since the last call, in seconds of one clock. To be called before it changes."""
        if self.allocated:
            seconds = now - self._since
            self._wasted_slots += (self.allocated - self.held) * seconds
            for g, used in enumerate(self.pool.used_by):
                self._used_slots[g] += used * self.block_size * seconds
        self._since = now

    def leans_on(self, seq: Sequence, step: int) -> bool:
        """True where positions `seq` counts as computed lie in a block that step `step` or a later one was to write."""
        full = seq.computed // self.block_size
        return any(block.ready >= step for table in seq.tables for block in table[:full])

    def torn(self, seq: Sequence) -> bool:
        """True where a rewound sequence would read blocks it has dropped."""
        return any(seq.dropped[g.index] > g.droppable(seq.computed) for g in self._windowed)

    def fail(self, step: int) -> None:
        """Unpublishes every block that step `step` or a later one was to write."""
        for block in self._unlanded:
            if block.ready >= step:
                self.pool.unpublish(block)
        self._unlanded.clear()

    def disown(self, seq: Sequence) -> None:
        """Unpublishes what a sequence holds: its contents are suspect."""
        for table, dropped in zip(seq.tables, seq.dropped, strict=True):
            for block in table[dropped:]:
                self.pool.unpublish(block)

    def rewind(self, seq: Sequence, computed: int) -> None:
        """Back to `computed` positions; the tables keep their blocks."""
        self.held -= seq.computed - computed
        seq.computed = computed
        full = computed // self.block_size
        seq.published = [min(p, full) for p in seq.published]
        if self.caching:
            seq.next_full = (min(seq.published) + 1) * self.block_size

    @property
    def waste(self) -> float:
        """Share of held slots without a token, averaged over time. (All tables of a sequence are of one length.)"""
        used = sum(self._used_slots)
        return self._wasted_slots * len(self.groups) / used if used else 0.0

    def group_stats(self) -> tuple[GroupStats, ...]:
        """What each group holds now, and its share of waste."""
        return tuple(
            GroupStats(name=name, blocks_used=used, waste=self._wasted_slots / total if total else 0.0)
            for name, used, total in zip(self._names, self.pool.used_by, self._used_slots, strict=True)
        )

    def check(self, holders: Iterable[Sequence]) -> None:
        """Raises AssertionError where tables, references and accounts disagree. O(pool): for tests."""
        self.pool.check()
        refs: dict[int, int] = {}
        held = allocated = 0
        for seq in holders:
            held += seq.computed
            allocated += seq.capacity
            assert seq.computed <= seq.capacity, seq
            verified = min(seq.computed, len(seq.tokens))
            for group, table, dropped in zip(self.groups, seq.tables, seq.dropped, strict=True):
                assert len(table) * self.block_size == seq.capacity, seq
                assert dropped <= group.droppable(verified), "dropped what will be read"
                for i, block in enumerate(table):
                    assert (block is self.pool.null) == (i < dropped), (i, dropped, table)
                    assert block.refs > 0 or i < dropped, block
                    refs[block.id] = refs.get(block.id, 0) + (i >= dropped)
        assert sum(refs.values()) == sum(block.refs for block in self.pool._blocks)
        assert sum(count > 0 for count in refs.values()) + self.pool.free == self.pool.total
        assert (held, allocated) == (self.held, self.allocated), (held, allocated, self.held, self.allocated)
