"""Which node each page goes to, on machines that are told of."""

from __future__ import annotations

import errno

import pytest

from octavo.runner.nodes import PAGE, Span, page_nodes, spread


class Recorded:
    """An arena that remembers what was asked of it."""

    def __init__(self, size: int, refuses: int = 0) -> None:
        self.nbytes, self.refuses = size, refuses
        self.asked: list[tuple[int, int, list[int]]] = []

    def bind(self, offset: int, nbytes: int, nodes: list[int]) -> int:
        self.asked.append((offset, nbytes, nodes))
        return self.refuses


def test_a_linear_lies_beside_the_threads_whose_home_it_is() -> None:
    """Eight pages of panels for four threads on two nodes: half and half, wherever the weight begins."""
    nodes = list(page_nodes(10 * PAGE, [Span(PAGE, 8 * PAGE, True)], [3, 3, 5, 5]))
    assert nodes[1:9] == [(3,)] * 4 + [(5,)] * 4


def test_uneven_shares_follow_the_threads() -> None:
    nodes = list(page_nodes(6 * PAGE, [Span(0, 6 * PAGE, True)], [0, 0, 1]))
    assert nodes == [(0,)] * 4 + [(1,)] * 2


def test_what_has_no_home_is_everybodys() -> None:
    spans = [Span(0, 2 * PAGE, True), Span(2 * PAGE, 4 * PAGE, False)]
    assert list(page_nodes(7 * PAGE, spans, [0, 1])) == [(0,), (1,), *[(0, 1)] * 5]


def test_small_weights_share_a_page() -> None:
    """A page belongs to what lies in its middle: the fifth of eight weights, of which it is the beginning."""
    size = PAGE // 8
    spans = [Span(i * size, size, i != 4) for i in range(16)]
    assert list(page_nodes(2 * PAGE, spans, [0, 1])) == [(0, 1), (0,)]


def test_arenas_are_bound_once_each_run_of_pages() -> None:
    weights, kv = Recorded(4 * PAGE + 100), Recorded(9 * PAGE)
    assert spread(weights, [Span(0, 4 * PAGE, True)], kv, [0, 0, 1, 1]) is None
    assert weights.asked == [(0, 2 * PAGE, [0]), (2 * PAGE, 2 * PAGE, [1]), (4 * PAGE, 100, [0, 1])]
    assert kv.asked == [(0, 9 * PAGE, [0, 1])]


def test_many_experts_are_one_call() -> None:
    """A process may have 65,530 mappings, and each call may make one."""
    weights = Recorded(1000 * PAGE)
    assert spread(weights, [Span(0, 1000 * PAGE, False)], Recorded(PAGE), [0, 1]) is None
    assert weights.asked == [(0, 1000 * PAGE, [0, 1])]


def test_a_refusal_says_what_was_not_placed() -> None:
    refuses = errno.EPERM
    told = spread(Recorded(PAGE, refuses=refuses), [], Recorded(PAGE), [0, 1])
    assert told == "weights from byte 0 on and KV cache: Operation not permitted"
    assert spread(Recorded(PAGE), [], Recorded(PAGE, refuses=refuses), [0, 1]) == "KV cache: Operation not permitted"


def test_the_system_is_really_asked() -> None:
    native = pytest.importorskip("octavo._native", reason="the native module is not built")
    arena = native.Arena(3 * PAGE)
    if error := arena.bind(0, arena.nbytes, [0]):
        pytest.skip(f"mbind is not to be had here: {errno.errorcode[error]}")
    arena.fill(1)
    assert arena.bind(0, arena.nbytes, [1023]) in (errno.EINVAL, errno.ENODEV), "no machine has that node"
    with pytest.raises(ValueError, match="no node"):
        arena.bind(0, PAGE, [])
    with pytest.raises(ValueError, match="beyond"):
        arena.bind(PAGE, 3 * PAGE, [0])
