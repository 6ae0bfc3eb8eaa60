"""The pool: who holds, who is free, who is known (rows A5, C5, E2.6, E2.7)."""

from __future__ import annotations

from octavo.sched.block_pool import BlockPool


def test_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert [block.id for block in pool.take(4)] == [1, 2, 3, 4]
    assert pool.free == 0 and pool.used == 4
    pool.check()


def test_unknown_blocks_are_reused_before_fresh_ones_and_fresh_before_known() -> None:
    pool = BlockPool(5)
    a, b = pool.take(2)
    pool.publish(a, b"a", step=1)
    pool.release([b, a])
    assert [block.id for block in pool.take(1)] == [b.id]
    assert [block.id for block in pool.take(2)] == [3, 4]
    assert pool.lookup(0, b"a") is a, "the known prefix was given up while other blocks were free"
    assert pool.take(1) == [a]
    assert pool.lookup(0, b"a") is None and a.hash is None
    pool.check()


def test_least_recently_used_prefix_goes_first() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, name, step=1)
    pool.release(reversed(blocks))
    hit = pool.lookup(0, b"c")
    assert hit is not None
    pool.acquire(hit)
    pool.release([hit])
    assert pool.take(2) == [blocks[1], blocks[0]], "c was used last; of one table the end goes before the beginning"
    pool.check()


def test_a_free_block_is_taken_out_of_the_middle() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for block, name in zip(blocks, (b"a", b"b", b"c"), strict=True):
        pool.publish(block, name, step=1)
    pool.release(blocks)
    pool.acquire(blocks[1])
    pool.acquire(blocks[1])
    assert (pool.free, blocks[1].refs) == (2, 2)
    pool.check()
    pool.release([blocks[1]])
    assert pool.free == 2, "somebody still holds it"
    pool.release([blocks[1]])
    assert pool.free == 3
    pool.check()


def test_one_block_per_name_and_group() -> None:
    pool = BlockPool(4, num_groups=2)
    a, b = pool.take(2)
    (c,) = pool.take(1, group=1)
    assert pool.publish(a, b"x", step=1)
    assert not pool.publish(b, b"x", step=1)
    assert pool.publish(c, b"x", step=1)
    assert b.hash is None and pool.cached == 2
    pool.check()


def test_reset_forgets_names_only() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.publish(a, b"a", step=1)
    pool.publish(b, b"b", step=1)
    pool.release([b])
    pool.reset()
    assert pool.cached == 0 and pool.used == 1
    pool.check()
