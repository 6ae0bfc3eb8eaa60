"""S14: every numeric field of SamplingParams takes its range and refuses the rest, by name."""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.messages import Add, decode_down, encode
from octavo.errors import InvalidRequest
from octavo.types import Request, SamplingParams

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
        ({"stop_token_ids": (0,) * 257}, "stop_token_ids"),
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


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": None, "stop_token_ids": None}, {"stop": (), "stop_token_ids": ()}),
        ({"stop_token_ids": [5, 6]}, {"stop_token_ids": (5, 6)}),
        ({"logit_bias": {5: 1}}, {"logit_bias": {5: 1.0}}),
    ],
)
def test_what_may_be_written_in_several_ways(fields: dict[str, Any], kept: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert {name: getattr(params, name) for name in kept} == kept


def test_what_is_kept_is_the_requests_own() -> None:
    bias, ids = {5: 1.0}, [5]
    given: dict[str, Any] = {"logit_bias": bias, "stop_token_ids": ids}
    params = SamplingParams(**given)
    bias[6], ids[0] = 100.0, 6
    assert params.logit_bias == {5: 1.0} and params.stop_token_ids == (5,)


class Unwritable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_token_ids": [-1]}, "stop_token_ids: got -1, allowed: token ids, integers from 0 to 2147483647"),
        ({"stop_token_ids": [0] * 257}, "stop_token_ids: got 257 token ids, allowed: at most 256"),
        ({"stop_token_ids": 5}, "stop_token_ids: got 5, allowed: a list of at most 256 token ids"),
        ({"stop_token_ids": "57"}, "stop_token_ids: got '57', allowed: a list of at most 256 token ids"),
        ({"stop": 5}, "stop: got 5, allowed: a string, or a list of at most 16"),
        ({"stop": ["a", 5]}, "stop: got 5, allowed: strings of 1 to 256 characters"),
        ({"stop": ["\ud800"]}, "stop: got '\\ud800', allowed: strings without lone surrogates"),
        ({"ignore_eos": "no"}, "ignore_eos: got 'no', allowed: True or False"),
        ({"ignore_eos": 1}, "ignore_eos: got 1, allowed: True or False"),
        ({"skip_special_tokens": None}, "skip_special_tokens: got None, allowed: True or False"),
        ({"include_stop_str_in_output": "x"}, "include_stop_str_in_output: got 'x', allowed: True or False"),
        ({"logit_bias": [5]}, "logit_bias: got [5], allowed: a dict of token ids"),
        ({"logit_bias": {5: True}}, "logit_bias: got True, allowed: token ids mapped to numbers from -100 to 100"),
        ({"logit_bias": {True: 1.0}}, "logit_bias: got True, allowed: token ids, integers from 0"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias: got '5', allowed: token ids, integers from 0"),
        ({"n": None}, "n: got None, allowed: an integer from 1 to 128"),
        ({"seed": "a" * 1000}, f"seed: got '{'a' * 199}…, allowed: an integer"),
        ({"temperature": 10**5000}, "temperature: got a value of type int that cannot be written, allowed: a number"),
        ({"temperature": Unwritable()}, "temperature: got a value of type Unwritable that cannot be written, allowed"),
    ],
)
def test_a_refusal_says_what_got_and_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert str(caught.value).startswith(message)
    assert [caught.value.param] == list(fields)


def test_travels_unchanged() -> None:
    params = SamplingParams(temperature=0.5, stop=("a",), logit_bias={3: -1.0}, seed=-5, logprobs=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


class Rank(enum.IntEnum):
    FIRST = 1


class Word(str):
    pass


SCALARS = st.one_of(
    ANYTHING,
    st.integers(-1, 130),
    st.floats(0, 1),
    st.binary(max_size=2),
    st.sampled_from([Rank.FIRST, Word("end"), 10**400, object(), "\ud800"]),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(SCALARS, max_size=4).map(tuple),
    st.sets(st.integers(0, 9), max_size=3),
    st.dictionaries(SCALARS, SCALARS, max_size=3),
    st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3),
)
FIELDS = SamplingParams.__struct_fields__


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_what_is_taken_reaches_the_engine_and_what_is_not_is_typed(fields: dict[str, Any]) -> None:
    params, refused = None, None
    try:
        params = SamplingParams(**fields)
    except InvalidRequest as error:
        refused = error.param
    if params is None:
        assert refused in FIELDS
        return
    sent = Add([Request(1, b"\0\0\0\0", params)])
    came = decode_down(encode(sent))
    assert came == sent
    assert isinstance(came, Add)
    there = msgspec.structs.asdict(came.requests[0].params)
    assert repr(there) == repr(msgspec.structs.asdict(params)), "of the same types, too"
