"""Reference linears: integer arithmetic against dequantised matmul, and weights against the gguf package."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from octavo.kernels.reference import linear, rows, weights

RNG = np.random.default_rng(11)
TYPES = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "mxfp4": gguf.GGMLQuantizationType.MXFP4,
}


def normal(*shape: int) -> rows.F32:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("source", TYPES)
def test_blocks_equal_the_gguf_package(source: str) -> None:
    w = normal(13, 96)
    data = quantize(w, TYPES[source])
    raw = np.frombuffer(data.tobytes(), np.uint8)
    assert (weights.blocks(source, raw, 13, 96).dense() == dequantize(data, TYPES[source])).all()


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("m", [1, 5])
def test_groups_equal_dense(source: str, m: int) -> None:
    """Exact int32 sums with two scales say the same as floats, to float32 rounding."""
    n, k = 17, 160
    data = quantize(normal(n, k), TYPES[source])
    w = weights.blocks(source, np.frombuffer(data.tobytes(), np.uint8), n, k)
    x = rows.quantize(normal(m, k))
    bias = normal(n)
    got = linear.grouped(x, w.codes, w.scale, minimum=w.minimum, bias=bias)
    dequantised = rows.dequantize(x[0], x[1])
    want = linear.exact(dequantised, w.dense(), bias)
    assert np.abs(got - want).max() < 2e-5
    assert np.abs(linear.dense(dequantised, w.dense(), bias) - want).max() < 2e-5


@pytest.mark.parametrize("k", [20, 32, 100])
@pytest.mark.parametrize("format", ["int8", "int4m"])
def test_quantised_weights_and_tails(format: str, k: int) -> None:
    w = normal(9, k)
    q = weights.quantize_weight(format, w)
    levels = 127 if format == "int8" else 15
    assert q.codes.shape == (9, k)
    assert q.codes.max() <= levels
    assert q.codes.min() >= (-127 if format == "int8" else 0)
    spread = np.abs(w).max() / 127 if format == "int8" else (w.max() - w.min()) / 15
    assert np.abs(q.dense() - w).max() < spread * (0.52 if format == "int8" else 1.5)
    x = rows.quantize(normal(3, k))
    got = linear.grouped(x, q.codes, q.scale, minimum=q.minimum)
    assert np.abs(got - linear.exact(rows.dequantize(x[0], x[1]), q.dense())).max() < 2e-5


def test_int4m_beats_the_plain_range() -> None:
    w = normal(64, 256)
    plain = w.reshape(64, 8, 32)
    low, high = plain.min(2, keepdims=True), plain.max(2, keepdims=True)
    step = (high - low) / 15
    rounded = np.rint((plain - low) / step) * step + low
    refined = weights.quantize_weight("int4m", w).dense().reshape(plain.shape)
    assert ((refined - plain) ** 2).mean() < 0.95 * ((rounded - plain) ** 2).mean()


@pytest.mark.parametrize("format", ["int8", "int4m"])
@pytest.mark.parametrize("value", [0.0, 0.375, -2.5])
def test_constant_groups(format: str, value: float) -> None:
    w = np.full((2, 40), value, np.float32)
    assert np.abs(weights.quantize_weight(format, w).dense() - w).max() <= abs(value) / 1000


def test_float_sources() -> None:
    w = normal(3, 5)
    for source, kind in (("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        raw = np.frombuffer(w.astype(kind).tobytes(), np.uint8)
        assert (weights.floats(source, raw, 3, 5) == w.astype(kind).astype(np.float32)).all()
    raw = np.frombuffer(w.tobytes(), np.uint8)
    assert (weights.dense_weight("bf16", "f32", raw, 3, 5) == rows.round_bf16(w)).all()
    assert (weights.dense_weight("f32", "f32", raw, 3, 5) == w).all()
