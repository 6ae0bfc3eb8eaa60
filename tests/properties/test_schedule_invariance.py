"""A request's answer does not depend on the schedule: thousands of random schedules against each sequence alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.policy import POLICIES
from tests.properties.schedule_cases import EXPECTED, Case, Play

CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    block_size=st.sampled_from([1, 2, 4, 16]),
    pool=st.sampled_from(["tight", "tight", "small", "ample", "short"]),
    budget=st.sampled_from([64, 1, 3, 8]),
    max_seqs=st.sampled_from([8, 1, 2]),
    depth=st.sampled_from([1, 2, 3]),
    chain=st.sampled_from([1, 2]),
    drafts=st.sampled_from([0, 0, 2, 4]),
    caching=st.sampled_from([True, True, False]),
    threshold=st.sampled_from([0, 0, 3]),
    policy=st.sampled_from([*POLICIES]),
    windows=st.sampled_from(
        [(None,), (None,), (None, None), (5,), (1,), (None, 3), (None, 6, 17), (None, 20, 20), (9, 2), (40, None)]
    ),
    faults=st.sampled_from(["none", "none", "steps", "guilty", "rows"]),
    aborts=st.booleans(),
    pace=st.sampled_from(["none", "none", "honest", "mad"]),
)


FOUND = {
    # Its trial found no room, so an ordinary step came instead, and failed again, for ever.
    "a guilty request that lost its place": Case(
        seed=27663,
        block_size=1,
        pool="tight",
        budget=8,
        max_seqs=8,
        depth=2,
        chain=2,
        drafts=4,
        caching=True,
        threshold=0,
        policy="priority",
        windows=(5,),
        faults="guilty",
        aborts=False,
        pace="none",
    ),
}
"""Cases that failed once."""


@pytest.mark.parametrize("name", FOUND)
def test_what_failed_once(name: str) -> None:
    Play(FOUND[name], Counter()).run()


def test_answers_do_not_depend_on_the_schedule() -> None:
    counts: Counter[str] = Counter()

    @given(CASES)
    def plays(case: Case) -> None:
        Play(case, counts).run()

    plays()
    print(dict(sorted(counts.items())))
    missing = [name for name in EXPECTED if not counts[name]]
    assert not missing, f"never happened in {counts['cases']} cases: {missing}"
