"""S14: every numeric field of SamplingParams takes its range and refuses the rest, by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequest
from octavo.types import SamplingParams

RANGES: dict[str, tuple[float, float, bool]] = {
    "n": (1, 128, True),
    "max_tokens": (1, 2**31 - 1, True),
    "temperature": (0, 100, False),
    "top_k": (-1, 2**31 - 1, True),
    "min_p": (0, 1, False),
    "presence_penalty": (-2, 2, False),
    "frequency_penalty": (-2, 2, False),
    "repetition_penalty": (1e-3, 1e3, False),
    "seed": (-(2**63), 2**63 - 1, True),
    "logprobs": (0, 20, True),
    "prompt_logprobs": (0, 20, True),
}
ANYTHING = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
OPTIONAL = {"max_tokens", "seed", "logprobs", "prompt_logprobs"}


@pytest.mark.parametrize("name", RANGES)
@given(value=ANYTHING)
def test_exactly_the_range_is_taken(name: str, value: Any) -> None:
    low, high, whole = RANGES[name]
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    good = (value is None and name in OPTIONAL) or (number and math.isfinite(value) and low <= value <= high)
    if good:
        assert getattr(SamplingParams(**{name: value}), name) == value
    else:
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{name: value})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x" * 257,)}, "stop"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": (True,)}, "stop_token_ids"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
    ],
)
def test_other_limits(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.param == param


def test_travels_unchanged() -> None:
    params = SamplingParams(temperature=0.5, stop=("a",), logit_bias={3: -1.0}, seed=-5, logprobs=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
