"""The arithmetic of groups: what is needed, dropped and hit, against a walk over positions."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from octavo.errors import ConfigError
from octavo.executor.fake import fake_facts
from octavo.facts import SPANS, KVGroup, kind_of, most_positions, peak_blocks
from octavo.sched.block_pool import Block, BlockPool
from octavo.sched.groups import KINDS, Group, make_group
from octavo.sched.kv import KVManager


def group(window: int | None, block_size: int, pool: BlockPool, *, index: int = 0, chunk: int = 1) -> Group:
    facts = KVGroup(name="g", kind=kind_of(window), layers=1, window=window)
    return make_group(facts, index, block_size=block_size, pool=pool, chunk=chunk)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_a_window_drops_exactly_what_nobody_reads_again(window: int, size: int) -> None:
    one = group(window, size, BlockPool(4))
    for verified in range(100):
        read = {position // size for position in range(max(0, verified - window + 1), verified + 1)}
        assert one.droppable(verified) == min(read)


@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 40])
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 16, 33])
def test_the_peak_is_what_a_walk_in_chunks_holds(window: int, size: int, chunk: int) -> None:
    one = group(window, size, BlockPool(4), chunk=chunk)
    facts = KVGroup(name="g", kind="sliding", layers=1, window=window)
    worst = 0
    for first in range(1, chunk + 1):
        start, held = 0, 0
        while start < 200:
            end = start + (first if start == 0 else chunk)
            held = max(held, -(-end // size) - one.droppable(start))
            start = end
            assert held <= facts.peak(end, block_size=size, chunk=chunk) == one.peak(0, end)
        worst = max(worst, held)
    assert worst >= one.peak(0, 200) - 1, "the bound is loose by more than a block"


def test_the_memory_plan_counts_by_kind() -> None:
    assert SPANS.keys() == KINDS.keys()
    for kind, row in KINDS.items():
        assert issubclass(row, SPANS[kind])
    full = KVGroup(name="g", kind="full", layers=1, window=8)
    assert full.peak(400, block_size=4, chunk=4) == 100
    for kind, window, named in (("state", None, "full, sliding"), ("sliding", None, "1 or more")):
        with pytest.raises(ConfigError, match=f"'g': got .*, allowed: {named}"):
            KVGroup(name="g", kind=kind, layers=1, window=window).peak(400, block_size=4, chunk=4)


def test_the_longest_sequence_of_a_pool() -> None:
    groups = fake_facts(windows=(None, 8, 8)).groups
    for blocks in range(1, 40):
        longest = most_positions(groups, blocks, block_size=4, chunk=4)
        assert peak_blocks(groups, longest, block_size=4, chunk=4) <= blocks
        assert peak_blocks(groups, longest + 1, block_size=4, chunk=4) > blocks
    assert most_positions(fake_facts(windows=(8,)).groups, 5, block_size=4, chunk=4) > 10**9
    assert most_positions(fake_facts(windows=(8,)).groups, 3, block_size=4, chunk=4) == 12


class Cache:
    """Random groups that know random blocks of one prefix, and count look-ups."""

    def __init__(self, rng: random.Random) -> None:
        self.size = rng.choice([1, 2, 4])
        windows = rng.choice([(None,), (3,), (None, 5), (7, 2), (None, 4, 9), (6, None)])
        self.limit = rng.randint(0, 12)
        self.pool = BlockPool(200, num_groups=len(windows))
        self.groups = [group(w, self.size, self.pool, index=i) for i, w in enumerate(windows)]
        self.known: list[dict[int, Block]] = [{} for _ in windows]
        share = rng.choice([0.5, 0.8, 0.95])
        for g, i in itertools.product(range(len(windows)), range(self.limit)):
            if rng.random() < share:
                (self.known[g][i],) = self.pool.take(1, group=g)
                self.pool.publish(self.known[g][i], b"%d" % i, step=1)
        self.looked: Counter[tuple[int, bytes]] = Counter()
        self.inner = self.pool.lookup
        counted: Any = self.pool
        counted.lookup = self.lookup

    def lookup(self, g: int, name: bytes) -> Block | None:
        self.looked[g, name] += 1
        return self.inner(g, name)

    def fits(self, blocks: int) -> bool:
        return all(
            i in self.known[g]
            for g, one in enumerate(self.groups)
            for i in range(one.droppable(blocks * self.size), blocks)
        )


def test_hits_agree_with_trying_every_length() -> None:
    rng = random.Random(7)
    lengths = set()
    for _ in range(2000):
        cache = Cache(rng)
        finders = [one.find(lambda i: b"%d" % i) for one in cache.groups]
        length, before = cache.limit, -1
        while length != before:
            before = length
            for finder in finders:
                length = finder.fit(length)
        assert length == max(k for k in range(cache.limit + 1) if cache.fits(k))
        assert not cache.looked or max(cache.looked.values()) == 1, "a block was looked up twice"
        for one, finder, known in zip(cache.groups, finders, cache.known, strict=True):
            first = min(one.droppable(length * cache.size), length)
            assert finder.blocks(length) == [cache.pool.null] * first + [known[i] for i in range(first, length)]
        lengths.add(length)
    assert len(lengths) > 8


def test_a_long_sequence_fits_where_only_its_window_does() -> None:
    kv = KVManager(fake_facts(num_blocks=11, block_size=4, windows=(16,)), caching=True, chunk=8)
    assert kv.max_positions > 10**9
    assert kv.blocks_for(1000) == kv.blocks_for(10**6) == (15 + 8 + 6) // 4
