"""Threads on the nodes of a machine that is told of, not had."""

from __future__ import annotations

import pytest

from octavo.kernels.seats import Seat, pinned_seats, seats

ONE = dict.fromkeys(range(4), 0)
TWO = {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
"""Eight cores of two nodes, numbered in turns as some machines do."""


def test_one_node_binds_nobody() -> None:
    assert seats(4, range(4), range(4), ONE) == [Seat(0)] * 4
    assert seats(2, range(4), range(4), {}) == [Seat(0)] * 2


def test_threads_that_fit_on_a_node_are_counted_on_one() -> None:
    """They are not bound: the system may still move them."""
    assert seats(4, range(8), range(8), TWO) == [Seat(0)] * 4


@pytest.mark.parametrize(("threads", "here"), [(8, 4), (6, 4), (16, 8), (12, 8)])
def test_several_nodes(threads: int, here: int) -> None:
    """Neighbours share a node, and each may run wherever its node has room; also with more threads than cores."""
    cpus = {0: (0, 2, 4, 6), 1: (1, 3, 5, 7)}
    nodes = [0] * here + [1] * (threads - here)
    assert seats(threads, range(8), range(8), TWO) == [Seat(n, cpus[n]) for n in nodes]


def test_all_hardware_threads_of_a_core_are_room() -> None:
    """CPUs 8 to 15 are the second ones of the cores 0 to 7: nobody counts them, everybody may use them."""
    of_node = TWO | {cpu + 8: node for cpu, node in TWO.items()}
    taken = seats(8, range(8), range(16), of_node)
    assert taken[0] == Seat(0, (0, 2, 4, 6, 8, 10, 12, 14)) and taken[7] == Seat(1, (1, 3, 5, 7, 9, 11, 13, 15))


def test_cpus_that_were_named_are_kept_in_their_order() -> None:
    assert pinned_seats(3, [7, 2], TWO) == [Seat(1, (7,)), Seat(0, (2,)), Seat(1, (7,))]
