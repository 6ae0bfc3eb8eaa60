"""Rotary tables: the series against the platform's library, frequencies against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.program.rope import RopeSpec, sin_cos
from octavo.program.rope_kinds import DynamicScaling, Llama3Scaling, LongRopeScaling, ProportionalScaling, YarnScaling


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_sine_and_cosine(angles: list[float]) -> None:
    x = np.asarray(angles)
    sin, cos = sin_cos(x)
    assert np.abs(sin - np.sin(x)).max() < 1e-14
    assert np.abs(cos - np.cos(x)).max() < 1e-14
    assert np.abs(sin * sin + cos * cos - 1).max() < 1e-14


def test_angle_zero_is_exact() -> None:
    sin, cos = sin_cos(np.zeros(1))
    assert sin[0] == 0
    assert cos[0] == 1


def test_frequencies() -> None:
    freq = RopeSpec(64, 10000.0).frequencies(64)
    want = [10000.0 ** (-2 * i / 64) for i in range(32)]
    assert np.allclose(freq, want, rtol=1e-7)
    assert (freq == freq.astype(np.float32)).all()


def test_llama3_keeps_short_waves_and_slows_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain = RopeSpec(128, 500000.0).frequencies(64)
    scaled = RopeSpec(128, 500000.0, scaling).frequencies(64)
    turns = 8192 * plain / (2 * math.pi)
    assert (scaled[turns > 4] == plain[turns > 4]).all()
    assert np.allclose(scaled[turns < 1], plain[turns < 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8)).all()


def test_table_rows_are_positions() -> None:
    spec = RopeSpec(8, 100.0)
    cos, sin = spec.table(5000)
    assert cos.shape == sin.shape == (5000, 4)
    assert cos.dtype == np.float32
    angle = np.arange(5000)[:, None] * spec.frequencies(64)
    assert np.abs(cos - np.cos(angle)).max() < 1e-7
    assert np.abs(sin - np.sin(angle)).max() < 1e-7
    assert (spec.table(100)[0] == cos[:100]).all()


def test_dynamic_stretches_only_past_the_trained_length() -> None:
    plain, spec = RopeSpec(16, 10000.0), RopeSpec(16, 10000.0, DynamicScaling(4.0, 512))
    assert (spec.frequencies(512) == plain.frequencies(512)).all()
    grown = 10000.0 * (4 * 700 / 512 - 3) ** (16 / 14)
    assert np.allclose(spec.frequencies(700), grown ** (-np.arange(0, 16, 2) / 16), rtol=1e-7)
    assert spec.reach(512) == 2048 and plain.reach(512) == 512
    assert "as trained" in str(spec.note(512)) and "700 positions" in str(spec.note(700))
    assert plain.note(700) is None


def test_longrope_takes_its_factors_by_the_served_length() -> None:
    spec = RopeSpec(4, 100.0, LongRopeScaling((1.0, 2.0), (4.0, 8.0), 128, 1.25))
    assert np.allclose(spec.frequencies(128), [1, 0.05]) and np.allclose(spec.frequencies(129), [0.25, 0.0125])
    assert spec.table(100)[0][0].tolist() == [1.25, 1.25]
    assert "short factors" in str(spec.note(128)) and "long factors" in str(spec.note(129))


def test_yarn_keeps_what_turns_often() -> None:
    spec = RopeSpec(64, 10000.0, YarnScaling(4.0, 4096, 1.1))
    plain, got = RopeSpec(64, 10000.0).frequencies(64), spec.frequencies(64)
    turns = 4096 * plain / (2 * math.pi)
    assert (got[turns > 40] == plain[turns > 40]).all()
    assert np.allclose(got[turns < 0.7], plain[turns < 0.7] / 4, rtol=1e-6)
    assert spec.attention == 1.1 and spec.reach(4096) == 16384


def test_proportional_leaves_the_rest_of_the_head_alone() -> None:
    got = RopeSpec(16, 100.0, ProportionalScaling(2)).frequencies(64)
    assert np.allclose(got, [1, 100 ** (-2 / 16), 0, 0, 0, 0, 0, 0])


def test_the_native_table_has_the_same_bits() -> None:
    """Every quadrant, pieces of any size, scaled tables too."""
    native = pytest.importorskip("octavo._native")
    for spec in (
        RopeSpec(64, 10000.0),
        RopeSpec(10, 2.0),
        RopeSpec(4, 100.0, LongRopeScaling((1.0, 2.0), (4.0, 8.0), 128, 1.25)),
    ):
        rows = 9001
        cos, sin = (np.full((rows, spec.rotary // 2), np.nan, np.float32) for _ in range(2))
        for first, last in ((0, 1), (1, 4096), (4096, rows)):
            native.rope_rows(spec.frequencies(rows), spec.attention, first, last, cos, sin)
        want_cos, want_sin = spec.table(rows)
        assert (cos.view(np.int32) == want_cos.view(np.int32)).all() and (
            sin.view(np.int32) == want_sin.view(np.int32)
        ).all()
    with pytest.raises(ValueError, match="rope_rows"):
        native.rope_rows(spec.frequencies(rows), 1.0, 0, rows + 1, cos, sin)
