"""Reference row ops and q8: definitions, edges, and bounds of their rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.reference import rows

RNG = np.random.default_rng(5)
BELOW_TOP = float(np.nextafter(rows.Q8_TOP, np.float32(0)))


def normal(*shape: int) -> rows.F32:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 100, 576])
def test_quantize_is_within_half_a_step(k: int) -> None:
    x = normal(7, k)
    codes, scale, xsum = rows.quantize(x)
    groups = -(-k // 32)
    assert (codes.shape, scale.shape, xsum.shape) == ((7, k), (7, groups), (7, groups))
    error = np.abs(rows.dequantize(codes, scale) - x)
    step = np.repeat(scale, 32, axis=1)[:, :k]
    assert (error <= step * 0.5001).all()
    padded = np.zeros((7, groups * 32), np.int64)
    padded[:, :k] = codes
    assert np.allclose(xsum, scale * padded.reshape(7, groups, 32).sum(2))


@settings(deadline=None)
@given(st.lists(st.floats(-BELOW_TOP, BELOW_TOP, width=32), min_size=1, max_size=70))
def test_quantize_survives_any_row_below_the_top(values: list[float]) -> None:
    x = np.asarray([values], np.float32)
    codes, scale, xsum = rows.quantize(x)
    assert np.isfinite(scale).all()
    assert np.isfinite(xsum).all()
    assert np.abs(codes.astype(int)).max() <= 127
    assert (np.frexp(scale)[0] == 0.5).all()  # a power of two


def test_zeros_have_no_codes_and_nan_is_kept_visible() -> None:
    codes, scale, xsum = rows.quantize(np.zeros((1, 40), np.float32))
    assert not codes.any()
    assert (scale == 1).all()
    assert not xsum.any()
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.nan
    codes, scale, _ = rows.quantize(x)
    back = rows.dequantize(codes, scale)
    assert np.isnan(back[0, :32]).all()
    assert (back[0, 32:] == 1).all()


def test_rms_norm() -> None:
    x, w = normal(3, 50), normal(50)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    assert np.abs(rows.rms_norm(x, w, 1e-5) - want).max() < 1e-5


def test_silu_mul_and_its_limits() -> None:
    g, u = normal(4, 9), normal(4, 9)
    assert np.allclose(rows.silu_mul(g, u), g / (1 + np.exp(-g)) * u, atol=1e-6)
    ends = rows.silu_mul(np.asarray([-1e30, 0, 1e30], np.float32), np.ones(3, np.float32))
    assert ends[0] == 0
    assert ends[1] == 0
    assert ends[2] == np.float32(1e30)


def test_rope_turns_pairs_and_keeps_length() -> None:
    x = normal(6, 2, 10)
    angle = RNG.uniform(0, 6, (6, 4)).astype(np.float32)
    y = rows.rope(x, np.cos(angle), np.sin(angle))
    assert (y[..., 8:] == x[..., 8:]).all()
    for i in range(4):
        pair, turned = x[:, 1, i] + 1j * x[:, 1, i + 4], y[:, 1, i] + 1j * y[:, 1, i + 4]
        assert np.allclose(turned, pair * np.exp(1j * angle[:, i]), atol=1e-6)


def test_embed_and_gather_pick_rows() -> None:
    table = normal(9, 4)
    index = np.asarray([3, 0, 3], np.int32)
    assert (rows.embed(table, index) == table[[3, 0, 3]]).all()
    assert (rows.gather(table, index) == table[[3, 0, 3]]).all()
    assert rows.gather(table, np.empty(0, np.int32)).shape == (0, 4)


def test_bf16_rounds_to_nearest_even() -> None:
    exact = np.asarray([1.0, 1 + 2**-7], np.float32)
    assert (rows.round_bf16(exact) == exact).all()
    halfway = np.asarray([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert (rows.round_bf16(halfway) == np.asarray([1.0, 1 + 2**-6], np.float32)).all()
