"""Linears whose scales lie at the ends of their range or are no numbers: scalar's bits in every variant.

Whether a kernel multiplies the two scales of a group or adds exponents (numerics.md, "Linear").
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

_native = pytest.importorskip("octavo._native")

from octavo.kernels.reference.blocks import BLOCKS, blocks  # noqa: E402 (needs the module)
from octavo.kernels.reference.linear import grouped  # noqa: E402
from octavo.kernels.reference.rows import Q8_LEAST, Q8_TOP  # noqa: E402
from tests.ops.linear_cases import (  # noqa: E402
    FORMATS,
    HALVES,
    NATIVE_SOURCE,
    U8,
    Packed,
    aligned,
    q8_parts,
    rows,
    source,
)
from tests.ops.test_linear import linear  # noqa: E402

F32 = NDArray[np.float32]
HALF = [fmt for fmt in FORMATS if NATIVE_SOURCE[fmt] in HALVES]
"""Formats with scales in f16."""
ADDING = ["int8", "int4", "int4m", "int4z", "int4k", "int4x", "int5", "int5m", "int5k", "int4n"]
"""Those of which many rows add exponents."""
ONE_SCALE = ["int8", "int4", "int5", "int4n"]
"""Those of ADDING that have nothing but a scale for each group."""
N, K = 144, 256
"""Panels in pairs, and one left over."""
COUNTS = [11, 12, 13, 14, 19, 25, 70]
SCALES = np.array([6e-8, -6e-8, 6e-5, 6.2e-5, 0.01, -0.02, 1, -3, 65504, -65504], np.float16)
"""The smallest and largest f16, on both sides of the least normal one, and usual ones."""
SIZES = np.array([Q8_LEAST, np.nextafter(Q8_LEAST, np.float32(0)), 1e-9, 1, 1.99, 127.4, 127.5, 1e9, 0.6 * Q8_TOP,
                  np.nextafter(Q8_TOP, np.float32(0))], np.float32)  # fmt: skip
"""Largest magnitudes of groups: of the least and the largest scale, of no codes, and between."""


@pytest.fixture(scope="module")
def team() -> Iterator[object]:
    one = _native.Team(1)
    yield one
    one.close()


def weight_source(fmt: str, scales: NDArray[np.float16], k: int = K) -> U8:
    """Rows of a format's blocks with scales (and minima) out of `scales`, [N, blocks, bytes]."""
    rng = np.random.default_rng(len(fmt) + k)
    kind = NATIVE_SOURCE[fmt]
    raw = source(kind, N, k, rng)[0].reshape(N, -1, BLOCKS[kind].nbytes)
    for at in HALVES[kind]:
        put(raw, at, rng.choice(scales, raw.shape[:2]))
    return raw


def put(raw: U8, at: int, halves: NDArray[np.float16]) -> None:
    raw[..., at : at + 2] = np.ascontiguousarray(halves).view(np.uint8).reshape(*halves.shape, 2)


def pack(fmt: str, raw: U8, k: int = K) -> Packed:
    kind = NATIVE_SOURCE[fmt]
    flat = np.ascontiguousarray(raw).reshape(-1)
    panels = aligned(_native.packed_bytes(fmt, N, k), fill=0xFF)
    _native.pack(fmt, kind, N, k, flat, panels, 0, N, 1)
    return Packed(fmt, N, k, panels, blocks(kind, flat, N, k).dense().astype(np.float64))


def sized(sizes: F32, k: int = K) -> F32:
    """A row for each row of sizes [m, k / 32], whose groups have exactly these largest magnitudes."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (*sizes.shape, 32))
    x[..., 7] = rng.choice([-1, 1], sizes.shape)
    return (x * sizes[..., None]).astype(np.float32).reshape(len(sizes), -1)[:, :k]


def assert_scalars_bits(team: object, weight: Packed, data: U8, what: object) -> F32:
    """Scalar's numbers of all rows. A NaN has many bits, and is one number here."""
    most = COUNTS[-1]
    want = linear(team, "scalar", weight, data, most)[:, : 4 * N].copy().view(np.float32)
    for isa in _native.isas():
        for m in COUNTS:
            got = linear(team, isa, weight, data, m)[:, : 4 * N].copy().view(np.float32)
            same = (got.view(np.uint32) == want[:m].view(np.uint32)) | (np.isnan(got) & np.isnan(want[:m]))
            assert same.all(), (what, isa, m, np.argwhere(~same)[:3])
    return want


@pytest.mark.parametrize("fmt", HALF)
def test_ends_of_the_range(team: object, fmt: str) -> None:
    """Rows of one size each, then of all sizes mixed, against weights of all sizes: nothing is flushed or overflows."""
    weight = pack(fmt, weight_source(fmt, SCALES))
    mixed = np.random.default_rng(5).choice(SIZES, (COUNTS[-1], K // 32))
    mixed[: len(SIZES)] = SIZES[:, None]
    data, numbers = rows(fmt, sized(mixed), team)
    got = assert_scalars_bits(team, weight, data, fmt)
    want = numbers @ weight.numbers.T
    magnitude = np.abs(numbers) @ np.abs(weight.numbers).T
    fits = magnitude < 2.0**127
    assert fits.sum() > fits.size / 4
    assert (np.abs(got - want)[fits] <= 2e-6 * magnitude[fits]).all()


@pytest.mark.parametrize("fmt", ONE_SCALE)
def test_one_group_is_the_reference_to_the_bit(team: object, fmt: str) -> None:
    """One product of each output, rounded once: no order to differ in."""
    raw = weight_source(fmt, SCALES, 32)
    weight = pack(fmt, raw, 32)
    data, _ = rows(fmt, sized(np.resize(SIZES, (COUNTS[-1], 1)), 32), team)
    codes, scale, total = q8_parts(data, COUNTS[-1], 32)
    held = blocks(NATIVE_SOURCE[fmt], np.ascontiguousarray(raw).reshape(-1), N, 32)
    with np.errstate(over="ignore"):
        want = grouped((codes[:, 0], scale, total), held.codes, held.scale)
    assert ((scale >= 2.0**-96) & (scale <= 2.0**94)).all()
    np.testing.assert_array_equal(assert_scalars_bits(team, weight, data, fmt), want)


@pytest.mark.parametrize("odd", [0.0, -0.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("fmt", HALF)
def test_scales_that_are_no_normal_numbers(team: object, fmt: str, odd: float) -> None:
    """One such scale in the second pair of panels, one in the third: beside scales of usual size, where exponents added
    instead of multiplied would give large or finite numbers."""
    usual = SCALES[np.abs(SCALES.astype(np.float32) - 0.01) < 0.1]
    raw = weight_source(fmt, usual)
    last = raw.shape[1] - 1
    at = HALVES[NATIVE_SOURCE[fmt]][0]
    for column, block in ((63, last), (64, 0)):
        put(raw[column : column + 1, block : block + 1], at, np.full((1, 1), odd, np.float16))
    weight = pack(fmt, raw)
    data, _ = rows(fmt, sized(np.full((COUNTS[-1], K // 32), 0.7, np.float32)), team)
    got = assert_scalars_bits(team, weight, data, (fmt, odd))
    usual_columns = np.delete(got, [63, 64], axis=1)
    assert np.isfinite(usual_columns).all()
    assert np.isfinite(got[:, 63:65]).any() == np.isfinite(odd)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, float(Q8_TOP)])
@pytest.mark.parametrize("row", [0, 12, 60])
@pytest.mark.parametrize("fmt", HALF)
def test_a_group_that_is_no_number(team: object, fmt: str, row: int, bad: float) -> None:
    """Its row is NaN, whose codes are all 0; all others keep their bits."""
    weight = pack(fmt, weight_source(fmt, SCALES[4:8]))
    x = sized(np.full((COUNTS[-1], K // 32), 0.7, np.float32))
    whole = assert_scalars_bits(team, weight, rows(fmt, x, team)[0], fmt)
    x[row, K - 3] = bad
    data, _ = rows(fmt, x, team)
    got = assert_scalars_bits(team, weight, data, (fmt, bad))
    assert np.isnan(got[row]).all()
    others = np.delete(np.arange(len(x)), row)
    assert (got[others] == whole[others]).all()
