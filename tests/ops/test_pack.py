"""Packing: every pair keeps the file's numbers, quantising errs as little as it should, columns land where asked."""

from __future__ import annotations

import numpy as np
import pytest

_native = pytest.importorskip("octavo._native")

from octavo.kernels.reference.blocks import BLOCKS, blocks  # noqa: E402 (needs the module)
from octavo.quant.table import FLOATS, FORMATS, SOURCES  # noqa: E402
from tests.ops.linear_cases import NATIVE_SOURCE, aligned, from_bf16, source, to_bf16, unpacked  # noqa: E402

LOSSLESS = [(row.name, kind) for row in FORMATS.values() for kind in row.holds]


@pytest.mark.parametrize(("n", "k"), [(16, 256), (33, 768), (7, 96), (20, 32)])
@pytest.mark.parametrize(("fmt", "kind"), LOSSLESS)
def test_lossless(fmt: str, kind: str, n: int, k: int) -> None:
    """Every pair of quant/table.py, and no pair that it does not have."""
    if kind in BLOCKS:
        k = -(-k // BLOCKS[kind].size) * BLOCKS[kind].size
    data, numbers = source(kind, n, k, np.random.default_rng(1))
    panels = aligned(_native.packed_bytes(fmt, n, k), fill=0xFF)
    assert panels.size == FORMATS[fmt].storage_bytes(n, k)
    _native.pack(fmt, kind, n, k, data, panels, 0, n, 2)
    np.testing.assert_array_equal(unpacked(fmt, n, k, panels), numbers.astype(np.float32))


def test_the_table_says_what_the_packer_takes() -> None:
    quantised = {(fmt, kind) for fmt in ("int8", "int4m", "bf16") for kind in FLOATS}
    takes = {(fmt, kind) for fmt in FORMATS for kind in SOURCES if _native.can_pack(fmt, kind)}
    assert takes == set(LOSSLESS) | quantised


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 32), (53, 33), (100, 896), (17, 4864), (5, 288)])
def test_sizes(fmt: str, n: int, k: int) -> None:
    assert _native.packed_bytes(fmt, n, k) == FORMATS[fmt].storage_bytes(n, k)


@pytest.mark.parametrize(("fmt", "wide", "kind"), [("int4n", "int8", "iq4_nl"), ("int4e", "int8f", "mxfp4")])
def test_every_index_and_scale_of_a_table(fmt: str, wide: str, kind: str) -> None:
    """All 16 codes under all scales there are, infinite and NaN ones too, as when converted upward.

    mxfp4's two smallest scales are denormal in float32 and flushed to 0.
    """
    scales = np.arange(256, dtype=np.uint8)[:, None] if kind == "mxfp4" else np.arange(1 << 16, dtype="<u2")[:, None]
    raw = np.concatenate([scales.view(np.uint8), np.tile(np.arange(16, dtype=np.uint8) * 17, (len(scales), 1))], axis=1)
    n = len(raw) // 4
    got = []
    for form in (fmt, wide):
        panels = aligned(_native.packed_bytes(form, n, 128), fill=0xFF)
        _native.pack(form, kind, n, 128, raw.reshape(-1), panels, 0, n, 2)
        got.append(unpacked(form, n, 128, panels))
    np.testing.assert_array_equal(got[0], got[1])
    want = blocks(kind, raw.reshape(-1), n, 128).dense()
    if kind == "mxfp4":
        want[0, :64] = 0
    np.testing.assert_array_equal(got[0], want)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_bf16_rounds_once(kind: str) -> None:
    data, numbers = source(kind, 19, 33, np.random.default_rng(2))
    panels = aligned(_native.packed_bytes("bf16", 19, 33), fill=0xFF)
    _native.pack("bf16", kind, 19, 33, data, panels, 0, 19, 1)
    want = from_bf16(to_bf16(numbers.astype(np.float32)))
    np.testing.assert_array_equal(unpacked("bf16", 19, 33, panels), want)


@pytest.mark.parametrize("k", [64, 100, 576])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("fmt", "step"), [("int8", 254), ("int4m", 15)])
def test_quantised(fmt: str, step: int, kind: str, k: int) -> None:
    """No number is off by much more than half a step of its group, and 4 bits beat plain min-max rounding."""
    data, numbers = source(kind, 20, k, np.random.default_rng(3))
    panels = aligned(_native.packed_bytes(fmt, 20, k), fill=0xFF)
    _native.pack(fmt, kind, 20, k, data, panels, 0, 20, 2)
    got = unpacked(fmt, 20, k, panels).astype(np.float64)
    plain = 0.0
    error = 0.0
    for first in range(0, k, 32):
        x, y = numbers[:, first : first + 32], got[:, first : first + 32]
        low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
        width = 2 * np.abs(x).max(axis=1, keepdims=True) if fmt == "int8" else high - low
        assert (np.abs(x - y) <= width / step * (0.51 if fmt == "int8" else 1.6) + 1e-9).all()
        base = -width / 2 if fmt == "int8" else low
        grid = np.maximum(width / step, 1e-30)
        plain += float(((np.rint((x - base) / grid) * grid + base - x) ** 2).sum())
        error += float(((x - y) ** 2).sum())
    assert error < (1.02 if fmt == "int8" else 0.97) * plain


def test_constant_and_zero_groups() -> None:
    x = np.zeros((3, 64), np.float32)
    x[1] = 0.25
    x[2] = -3
    for fmt in ("int8", "int4m"):
        panels = aligned(_native.packed_bytes(fmt, 3, 64), fill=0xFF)
        _native.pack(fmt, "f32", 3, 64, x.view(np.uint8).reshape(-1), panels, 0, 3, 1)
        np.testing.assert_allclose(unpacked(fmt, 3, 64, panels), x, rtol=1e-3)


@pytest.mark.parametrize("fmt", FORMATS)
def test_columns_of_a_fused_weight(fmt: str) -> None:
    """Three tensors side by side equal one tensor; the columns that pad the last panel are zero."""
    kind = NATIVE_SOURCE[fmt]
    n, k = 53, 96 if BLOCKS.get(kind, BLOCKS["q8_0"]).size == 32 else 512
    data, _ = source(kind, n, k, np.random.default_rng(4))
    whole = aligned(_native.packed_bytes(fmt, n, k), fill=0xFF)
    parts = aligned(_native.packed_bytes(fmt, n, k), fill=0xFF)
    _native.pack(fmt, kind, n, k, data, whole, 0, n, 1)
    row = data.size // n
    for first, last in ((40, 53), (0, 9), (9, 40)):
        _native.pack(fmt, kind, last - first, k, data[first * row : last * row], parts, first, n, 2)
    np.testing.assert_array_equal(whole, parts)
    assert not unpacked(fmt, 64, k, whole)[n:].any()


@pytest.mark.parametrize(
    ("fmt", "kind"),
    [
        ("int4", "f32"),
        ("int4", "q4_1"),
        ("int4m", "q4_0"),
        ("int4m", "q8_0"),
        ("bf16", "q4_1"),
        ("int5k", "q6_k"),
        ("int4n", "iq4_xs"),
        ("int4n", "q4_0"),
        ("int4", "iq4_nl"),
        ("int4e", "iq4_nl"),
    ],
)
def test_refuses_to_lose_bits(fmt: str, kind: str) -> None:
    assert not _native.can_pack(fmt, kind)
    with pytest.raises(ValueError, match="lose"):
        _native.pack(fmt, kind, 16, 256, aligned(16384), aligned(_native.packed_bytes(fmt, 16, 256)), 0, 16, 1)
