"""Rotary tables: the series against the platform's library, frequencies against their definition."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.program.rope import Llama3Scaling, RopeSpec, sin_cos


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
    freq = RopeSpec(64, 10000.0).frequencies()
    want = [10000.0 ** (-2 * i / 64) for i in range(32)]
    assert np.allclose(freq, want, rtol=1e-7)
    assert (freq == freq.astype(np.float32)).all()


def test_llama3_keeps_short_waves_and_slows_long_ones() -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain = RopeSpec(128, 500000.0).frequencies()
    scaled = RopeSpec(128, 500000.0, scaling).frequencies()
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
    angle = np.arange(5000)[:, None] * spec.frequencies()
    assert np.abs(cos - np.cos(angle)).max() < 1e-7
    assert np.abs(sin - np.sin(angle)).max() < 1e-7
    assert (spec.table(100)[0] == cos[:100]).all()
