"""The planner: buffers alive together never overlap, and little is wasted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.program.memory import ALIGN, Lifetime, peak, plan

LIFETIMES = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 40), st.integers(0, 40)).map(
        lambda t: Lifetime(t[0], min(t[1:]), max(t[1:]))
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(LIFETIMES)
def test_no_two_live_buffers_overlap(items: list[Lifetime]) -> None:
    offsets, total = plan(items)
    for i, a in enumerate(items):
        assert offsets[i] % ALIGN == 0
        assert offsets[i] + a.size <= total
        for j in range(i):
            b = items[j]
            apart_in_time = a.last < b.first or b.last < a.first
            apart_in_space = offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
            assert apart_in_time or apart_in_space, (a, b)


@settings(deadline=None, max_examples=100)
@given(LIFETIMES)
def test_never_below_the_peak_nor_above_the_sum(items: list[Lifetime]) -> None:
    _, total = plan(items)
    padded = [Lifetime(-(-i.size // ALIGN) * ALIGN, i.first, i.last) for i in items]
    assert peak(items) <= total <= sum(i.size for i in padded)


def test_a_chain_takes_two_neighbours() -> None:
    """x -> y -> z …, each read once by the next op."""
    items = [Lifetime(640, i, i + 1) for i in range(30)]
    assert plan(items)[1] == 1280 == peak(items)
    uneven = [Lifetime(64 * (1 + i % 3), i, i + 1) for i in range(30)]
    assert plan(uneven)[1] <= 1.25 * peak(uneven)


def test_nothing_to_place() -> None:
    assert plan([]) == ([], 0)
    assert peak([]) == 0
