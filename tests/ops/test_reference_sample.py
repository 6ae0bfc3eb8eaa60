"""Reference sampling: every stage, its order, ties, and the distribution it draws from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.reference import sample as sampling
from octavo.kernels.reference.sample import RowParams

RNG = np.random.default_rng(31)
NONE = np.empty(0, np.int32)


def params(**changes: Any) -> RowParams:
    base: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence": 0.0,
        "frequency": 0.0,
        "repetition": 1.0,
        "seed": 7,
        "num_prompt": 0,
        "min_tokens": 0,
        "bias": (NONE, np.empty(0, np.float32)),
        "stops": NONE,
    }
    return RowParams(**{**base, **changes})


def ids(*values: int) -> Any:
    return np.asarray(values, np.int32)


def logits(*values: float) -> Any:
    return np.asarray(values, np.float32)


def kept_ids(x: Any, **changes: Any) -> list[int]:
    return np.flatnonzero(sampling.kept(np.asarray(x, np.float64), params(**changes))).tolist()


def test_greedy_takes_the_lower_of_a_tie() -> None:
    assert sampling.sample(logits(1, 3, 3, 2), params(temperature=0.0), ids(0)) == 1


def test_all_but_freezing_is_greedy() -> None:
    """Where float32 cannot hold largest / temperature; a largest of 0 it always can, and then a tie is drawn."""
    for temperature in (1e-45, 1e-40, 1e-38):
        assert sampling.sample(logits(1, 3, 3, 2), params(temperature=temperature, seed=1), ids(0)) == 1
    drawn = {sampling.sample(logits(-1, 0, 0), params(temperature=1e-37, seed=seed), ids(0)) for seed in range(20)}
    assert drawn == {1, 2}


def test_filters() -> None:
    x = np.log([0.5, 0.2, 0.2, 0.1])
    assert kept_ids(x, top_k=2) == [0, 1]  # the tie at 0.2 goes to the lower id
    assert kept_ids(x, top_p=0.49) == [0]
    assert kept_ids(x, top_p=0.6) == [0, 1]
    assert kept_ids(x, min_p=0.4) == [0, 1, 2]
    assert kept_ids(x, top_k=2, top_p=0.8) == [0, 1]  # 0.5 / 0.7 = 0.71 < 0.8
    assert kept_ids(x, top_k=2, top_p=0.7) == [0]
    assert kept_ids(x, top_k=100) == [0, 1, 2, 3]
    assert kept_ids(x, top_p=1e-9) == [0]


def test_penalties() -> None:
    x = logits(2, -2, 1, 0)
    known = ids(0, 1, 1, 2)  # the prompt is [0]
    got = sampling.adjusted(x, params(repetition=2.0, num_prompt=1), known)
    assert got.tolist() == [1, -4, 0.5, 0]
    got = sampling.adjusted(x, params(presence=0.5, frequency=0.25, num_prompt=1), known)
    assert got.tolist() == [2, -3, 0.25, 0]
    assert x.tolist() == [2, -2, 1, 0]


def test_bias_comes_before_penalties() -> None:
    p = params(bias=(ids(1), logits(4)), repetition=2.0)
    assert sampling.adjusted(logits(0, -2), p, ids(1)).tolist() == [0, 1]


def test_min_tokens_forbids_stops() -> None:
    p = params(temperature=0.0, min_tokens=2, num_prompt=3, stops=ids(0))
    assert sampling.sample(logits(9, 1), p, ids(1, 1, 1)) == 1
    assert sampling.sample(logits(9, 1), p, ids(1, 1, 1, 1)) == 1
    assert sampling.sample(logits(9, 1), p, ids(1, 1, 1, 1, 1)) == 0


def test_uniform_depends_on_seed_and_position_only() -> None:
    assert sampling.uniform(1, 5) == sampling.uniform(1, 5)
    values = {sampling.uniform(s, p) for s in range(30) for p in range(30)}
    assert len(values) == 900
    assert all(0 <= v < 1 for v in values)
    many = np.asarray([sampling.uniform(3, p) for p in range(4000)])
    assert abs(many.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.05


def test_draws_follow_the_distribution() -> None:
    x = logits(1.0, 0.0, -1.0, 2.0)
    counts = np.zeros(4)
    for seed in range(4000):
        counts[sampling.sample(x, params(temperature=0.7, seed=seed), ids(0))] += 1
    want = np.exp(x / 0.7)
    assert np.abs(counts / 4000 - want / want.sum()).max() < 0.03


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40),
    st.integers(0, 45),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 2**64 - 1),
)
def test_a_draw_is_always_kept(values: list[float], top_k: int, top_p: float, min_p: float, seed: int) -> None:
    x = np.asarray(values, np.float32)
    p = params(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    keep = sampling.kept(x.astype(np.float64), p)
    assert keep[int(np.argmax(x))]
    assert keep[sampling.sample(x, p, ids(0))]


def test_logprobs_rank_and_top() -> None:
    x = logits(0, 2, 2, -1)
    chosen, rank, top, values = sampling.logprobs(x, 2, 3)
    lse = np.log(np.exp(x.astype(np.float64)).sum())
    assert chosen == pytest.approx(2 - lse)
    assert rank == 2
    assert list(top) == [1, 2, 0]
    assert list(values) == pytest.approx([2 - lse, 2 - lse, -lse])
    assert sampling.logprobs(x, 3, 0)[1:3] == (4, [])
    big = logits(1e30, 0)
    assert sampling.logprobs(big, 0, 1)[0] == 0
