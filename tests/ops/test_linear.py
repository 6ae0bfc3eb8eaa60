"""Linears: values against float64, bits against the scalar variant for every ISA, row count and split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

_native = pytest.importorskip("octavo._native")

from octavo.kernels.reference.blocks import blocks  # noqa: E402
from octavo.kernels.reference.linear import by_token  # noqa: E402
from octavo.kernels.reference.rows import quantize, quantize_token  # noqa: E402
from tests.ops.linear_cases import (  # noqa: E402 (needs the module)
    FORMATS,
    NATIVE_SOURCE,
    Packed,
    aligned,
    packed,
    q8_parts,
    q8t_parts,
    rows,
    rows_for,
    source,
    source_of,
)

SHAPES = [(40, 64), (33, 576), (96, 896), (16, 1536), (17, 100), (5, 33), (1, 1), (37, 256), (21, 2304)]
CASES = [(fmt, n, k) for fmt in FORMATS for n, k in SHAPES if source_of(fmt, k)]
BITS = [(fmt, n, k) for fmt, n, k in CASES if n * k < 20_000]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def team() -> Iterator[object]:
    one = _native.Team(1)
    yield one
    one.close()


def case(fmt: str, n: int, k: int) -> tuple[Packed, np.random.Generator]:
    rng = np.random.default_rng(n * 1000 + k)
    return packed(fmt, n, k, rng), rng


def linear(team: object, isa: str, weight: Packed, x: np.ndarray, m: int, **options: object) -> np.ndarray:
    """Rows [0, m) of x, as the output buffer [m, row_bytes]; `base` is what it held before."""
    dtype = "bf16" if options.get("out_bf16") else "f32"
    stride = _native.row_bytes(dtype, weight.n)
    out = aligned(m * stride)
    base = options.pop("base", None)
    if base is not None:
        out.reshape(m, stride)[:, : 4 * weight.n] = np.ascontiguousarray(base[:m]).view(np.uint8)
    x = x.reshape(-1, _native.row_bytes(rows_for(weight.format), weight.k))[:m]
    _native.linear(team, isa, weight.format, weight.n, weight.k, weight.panels, x.reshape(-1), m, out, **options)
    return out.reshape(m, stride)


@pytest.mark.parametrize(("fmt", "n", "k"), CASES)
def test_values(team: object, fmt: str, n: int, k: int) -> None:
    weight, rng = case(fmt, n, k)
    x, numbers = rows(fmt, (rng.standard_normal((9, k)) * 3).astype(np.float32), team)
    want = numbers @ weight.numbers.T
    magnitude = np.abs(numbers) @ np.abs(weight.numbers).T + 1e-30
    for isa in _native.isas():
        got = linear(team, isa, weight, x, 9)[:, : 4 * n].copy().view(np.float32)
        assert (np.abs(got - want) / magnitude).max() < 2e-6


@pytest.mark.parametrize(("fmt", "n", "k"), BITS)
def test_bits(team: object, fmt: str, n: int, k: int) -> None:
    """A row's bits are the same alone and among 70, in every variant, with every epilogue."""
    weight, rng = case(fmt, n, k)
    x, _ = rows(fmt, (rng.standard_normal((70, k)) * 3).astype(np.float32), team)
    bias = rng.standard_normal(n).astype(np.float32)
    base = rng.standard_normal((70, n)).astype(np.float32)
    for options in (
        {},
        {"bias": bias, "accumulate": True, "base": base},
        {"bias": bias, "out_bf16": True, "scale": 0.22},
    ):
        want = linear(team, "scalar", weight, x, 70, **options)
        for isa in _native.isas():
            for m in (*range(1, 15), 19, 25, 48, 70):
                assert (linear(team, isa, weight, x, m, **options) == want[:m]).all(), (isa, m)


@pytest.mark.parametrize(("fmt", "wide"), [("int4n", "int8"), ("int4x", "int8f"), ("int4e", "int8f")])
def test_a_table_gives_the_bits_of_its_codes_in_bytes(team: object, fmt: str, wide: str) -> None:
    rng = np.random.default_rng(8)
    kind = NATIVE_SOURCE[fmt]
    src, numbers = source(kind, 37, 512, rng)
    weights = []
    for form in (fmt, wide):
        panels = aligned(_native.packed_bytes(form, 37, 512))
        _native.pack(form, kind, 37, 512, src, panels, 0, 37, 1)
        weights.append(Packed(form, 37, 512, panels, numbers))
    x, _ = rows(fmt, (rng.standard_normal((25, 512)) * 3).astype(np.float32), team)
    for isa in _native.isas():
        for m in (1, 6, 25):
            packed_bits, wide_bits = (linear(team, isa, weight, x, m) for weight in weights)
            assert (packed_bits == wide_bits).all(), (isa, m)


@pytest.mark.parametrize("fmt", FORMATS)
def test_scale_comes_after_the_bias_and_before_the_sum(team: object, fmt: str) -> None:
    weight, rng = case(fmt, 24, 256)
    x, _ = rows(fmt, rng.standard_normal((5, 256)).astype(np.float32), team)
    bias, base = rng.standard_normal(24).astype(np.float32), rng.standard_normal((5, 24)).astype(np.float32)
    plain = linear(team, "scalar", weight, x, 5, bias=bias)[:, :96].copy().view(np.float32)
    got = linear(team, "scalar", weight, x, 5, bias=bias, accumulate=True, base=base, scale=0.22)
    assert (got[:, :96].copy().view(np.float32) == base + plain * np.float32(0.22)).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_many_rows(team: object, fmt: str) -> None:
    """More rows than a block: the last block's rows are those computed alone."""
    weight, rng = case(fmt, 24, 512)
    x, _ = rows(fmt, rng.standard_normal((300, 512)).astype(np.float32), team)
    isa = _native.isas()[-1]
    whole = linear(team, isa, weight, x, 300)
    stride = x.size // 300
    for row in (0, 131, 239, 240, 299):
        alone = linear(team, isa, weight, x[row * stride : (row + 1) * stride], 1)
        assert (alone[0] == whole[row]).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_panels_split(team: object, fmt: str) -> None:
    """Two threads, and panel ranges one after another, write exactly their own columns."""
    weight, rng = case(fmt, 77, 256)
    x, _ = rows(fmt, rng.standard_normal((5, 256)).astype(np.float32), team)
    want = linear(team, "scalar", weight, x, 5)
    two = _native.Team(2)
    isa = _native.isas()[-1]
    assert (linear(two, isa, weight, x, 5) == want).all()
    two.close()
    stride = _native.row_bytes("f32", 77)
    out = aligned(5 * stride)
    for first, last in ((0, 1), (3, 5), (1, 3)):
        _native.linear(team, isa, fmt, 77, 256, weight.panels, x, 5, out, panel0=first, panel1=last)
    assert (out.reshape(5, stride)[:, : 4 * 77] == want[:, : 4 * 77]).all()


def hard_rows(width: int) -> np.ndarray:
    """Six rows of sizes far apart: of zeros, of denormals, with a NaN and with an infinity among them."""
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((6, width)) * np.exp(rng.uniform(-20, 20, (6, 1)))).astype(np.float32)
    x[1] = 0
    x[2] = 1e-38
    x[3, 0] = np.nan
    x[4, -1] = np.inf
    return x


@pytest.mark.parametrize("width", [1, 16, 31, 32, 33, 48, 100, 576, 1536])
def test_quantize_rows(team: object, width: int) -> None:
    """numerics.md "Activations: q8", value by value, the same bits in every variant."""
    x = hard_rows(width)
    codes, scale, sums = quantize(x)
    for isa in _native.isas():
        out = aligned(6 * _native.row_bytes("q8", width), fill=0xFF)
        _native.quantize_rows(team, isa, x, out)
        got_codes, got_scales, got_sums = q8_parts(out, 6, width)
        got_codes = got_codes.reshape(6, -1)
        np.testing.assert_array_equal(got_codes[:, :width], codes)
        assert not got_codes[:, width:].any()
        np.testing.assert_array_equal(got_scales, scale)
        np.testing.assert_array_equal(got_sums, sums)


def below(x: float) -> float:
    return float(np.nextafter(np.float32(x), np.float32(0)))


Q8_ENDS = [
    # the largest of a group, its scale, its code
    (64.0, 1.0, 64),
    (below(64.0), 1.0, 64),  # 63.75 and up is 64 steps of 1, not 127 or 128 of 1/2
    (63.75, 1.0, 64),
    (below(63.75), 0.5, 127),
    (127.0, 1.0, 127),
    (below(127.5), 1.0, 127),
    (127.5, 2.0, 64),
    (below(128.0), 2.0, 64),
    (128.0, 2.0, 64),
    (2.0**-90, 2.0**-96, 64),
    (below(2.0**-90), 1.0, 0),
    (0.0, 1.0, 0),
    (2.0**-149, 1.0, 0),
    (below(2.0**100), 2.0**94, 64),
    (2.0**99, 2.0**93, 64),
    (2.0**100, np.nan, 0),
    (float(np.finfo(np.float32).max), np.nan, 0),
    (np.inf, np.nan, 0),
    (np.nan, np.nan, 0),
]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("at", [0, 15, 16, 31])
def test_quantize_rows_at_the_ends(team: object, at: int, sign: int) -> None:
    """Where a scale doubles, and where there are no codes: beside halves of a step, which go to the even one."""
    top, want_scale, want_code = (np.array(column) for column in zip(*Q8_ENDS, strict=True))
    x = np.zeros((1, len(top), 32), np.float32)
    coded = want_code != 0
    x[0, coded, 7:12] = np.array([0.5, 1.5, -2.5, -3.5, 0.49]) * want_scale[coded, None]
    x[0, :, at] = sign * top
    codes = np.zeros((len(top), 32), np.int8)
    codes[coded, 7:12] = [0, 2, -2, -4, 0]
    codes[:, at] = sign * want_code
    scale = want_scale.astype(np.float32)
    sums = scale * codes.sum(1)
    x = x.reshape(1, -1)
    out = aligned(_native.row_bytes("q8", x.size))
    seen = [quantize(x)]
    for isa in _native.isas():
        _native.quantize_rows(team, isa, x, out)
        seen.append(q8_parts(out, 1, x.size))
    for got_codes, got_scales, got_sums in seen:
        np.testing.assert_array_equal(got_codes.reshape(codes.shape), codes)
        np.testing.assert_array_equal(got_scales[0], scale)
        np.testing.assert_array_equal(got_sums[0], sums)


@pytest.mark.parametrize("width", [1, 16, 31, 32, 33, 48, 100, 576, 1536])
def test_quantize_rows_by_token(team: object, width: int) -> None:
    """numerics.md "Activations: q8t": all of a row is one group."""
    x = hard_rows(width)
    codes, scale, total = quantize_token(x[[0, 5]])
    for isa in _native.isas():
        out = aligned(6 * _native.row_bytes("q8t", width), fill=0xFF)
        _native.quantize_rows(team, isa, x, out, token=True)
        got_codes, got_scale, got_total = q8t_parts(out, 6, width)
        np.testing.assert_array_equal(got_codes[[0, 5], :width], codes)
        np.testing.assert_array_equal(got_scale[:, 0], [scale[0], 0, 0, np.nan, np.nan, scale[1]])
        np.testing.assert_array_equal(got_total[:, 0], [total[0], 0, 0, 0, 0, total[1]])
        assert not got_codes[1:5].any() and not got_codes[:, width:].any()


@pytest.mark.parametrize(("n", "k"), [(40, 64), (33, 576), (17, 4864)])
def test_by_token_is_the_reference_to_the_bit(team: object, n: int, k: int) -> None:
    """Its only sum is exact, so NumPy has an order for nothing."""
    rng = np.random.default_rng(3)
    src, _ = source("s8c", n, k, rng)
    panels = aligned(_native.packed_bytes("int8t", n, k), fill=0xFF)
    _native.pack("int8t", "s8c", n, k, src, panels, 0, n, 1)
    held = blocks("s8c", src, n, k)
    x = rng.standard_normal((25, k)).astype(np.float32)
    codes, scale, _ = quantize_token(x)
    want = by_token((codes, scale), held.codes, held.scale[:, 0])
    data, _ = rows("int8t", x, team)
    for isa in _native.isas():
        for m in (1, 7, 25):
            got = linear(team, isa, Packed("int8t", n, k, panels, want.astype(np.float64)), data, m)
            np.testing.assert_array_equal(got[:, : 4 * n].copy().view(np.float32), want[:m])


def test_by_token_at_its_widest(team: object) -> None:
    """The largest sums there are, and no wider row."""
    k = 1 << 17
    src = np.zeros((2, k // 32, 36), np.uint8)
    src[:, :, :4] = np.float32(1).reshape(1).view(np.uint8)
    src[0, :, 4:], src[1, :, 4:] = 0x80, 0x7F  # -128, 127
    panels = aligned(_native.packed_bytes("int8t", 2, k))
    _native.pack("int8t", "s8c", 2, k, src.reshape(-1), panels, 0, 2, 1)
    x, _ = rows("int8t", np.full((13, k), 127, np.float32), team)
    for isa in _native.isas():
        got = linear(team, isa, Packed("int8t", 2, k, panels, np.zeros((2, k))), x, 13)
        want = np.array([-128 * 127 * k, 127 * 127 * k], np.float32)
        assert (got[:, :8].copy().view(np.float32) == want).all(), isa
    with pytest.raises(ValueError, match="131,072"):
        wide = aligned(_native.packed_bytes("int8t", 2, k + 32))
        _native.linear(team, "scalar", "int8t", 2, k + 32, wide, x, 13, aligned(13 * 64))


def test_nan_reaches_its_own_row_only(team: object) -> None:
    weight, rng = case("int4m", 40, 64)
    x = rng.standard_normal((5, 64)).astype(np.float32)
    x[2, 40] = np.nan
    data, _ = rows("int4m", x, team, _native.isas()[-1])
    got = linear(team, _native.isas()[-1], weight, data, 5)[:, : 4 * 40].copy().view(np.float32)
    assert np.isnan(got[2]).all()
    assert np.isfinite(np.delete(got, 2, axis=0)).all()


@pytest.mark.parametrize(("fmt", "n", "k"), CASES)
def test_dequantize_row(team: object, fmt: str, n: int, k: int) -> None:
    weight, _ = case(fmt, n, k)
    for isa in _native.isas():
        for column in {0, n // 2, n - 1}:
            out = np.zeros(k, np.float32)
            _native.dequantize_row(team, isa, fmt, n, k, weight.panels, column, out)
            np.testing.assert_allclose(out, weight.numbers[column], rtol=2e-7, atol=1e-8)


def test_refuses_what_does_not_fit(team: object) -> None:
    weight, rng = case("int8", 16, 64)
    x, _ = rows("int8", rng.standard_normal((2, 64)).astype(np.float32), team)
    with pytest.raises(ValueError, match="out: not"):
        _native.linear(team, "scalar", "int8", 16, 64, weight.panels, x, 2, aligned(64))
    with pytest.raises(ValueError, match="isa"):
        _native.linear(team, "sse9", "int8", 16, 64, weight.panels, x, 2, aligned(128))
