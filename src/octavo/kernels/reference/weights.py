"""Reference weights: a checkpoint's bytes as a dense float32 matrix of the numbers an execution format holds."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.kernels.reference.blocks import BLOCKS as BLOCKS
from octavo.kernels.reference.blocks import Grouped as Grouped
from octavo.kernels.reference.blocks import blocks as blocks
from octavo.kernels.reference.rows import GROUP, in_groups, round_bf16

REFITS = 3
"""Of scale and minimum to the codes and codes to those, from each range that is tried (docs/decisions)."""
KEPT = (1.0, 0.93, 0.86)
"""Shares of a group's range that are tried."""
F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]

ITEM_TYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2")}


def floats(source: str, data: U8, n: int, k: int) -> F32:
    """f32, f16 or bf16 bytes [n, k] as float32, exactly."""
    if source == "bf16":  # the upper half of a float32
        bits = np.left_shift(data.view(np.uint16), 16, dtype=np.uint32)
        return np.asarray(bits.view(np.float32).reshape(n, k))
    return np.asarray(data.view(ITEM_TYPES[source]).reshape(n, k), np.float32)


def quantize_weight(format: str, w: F32) -> Grouped:
    """Float weights [n, k] to int8 or int4m in groups of 32 along k, as the native packer does.

    int8: scale = amax / 127 as f16, code = rne(x / scale). int4m: starts from the group's range, (max − min) / 15 over
    min, and from narrower ones (outliers are worth clipping a little), refits scale and min to the codes by least
    squares while that helps, and keeps the smallest squared error; both are rounded to f16 before codes are taken.
    """
    if format == "int8":
        g = in_groups(w)
        scale = _half(np.abs(g).max(axis=2) / np.float32(127))
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = np.where(scale[:, :, None] > 0, np.rint(g / scale[:, :, None]), 0)
        return Grouped(_ungroup(np.clip(codes, -127, 127), w.shape), scale, None)
    return _quantize_int4m(w)


class _Fit(Struct):
    """Codes of x [n, G, 32] under f16 scale and minimum [n, G], and the squared error they leave."""

    codes: F32
    scale: F32
    minimum: F32
    error: NDArray[np.float64]

    @classmethod
    def of(cls, x: F32, count: F32, scale: F32, minimum: F32) -> _Fit:
        scale, minimum = _half(scale), _half(minimum)
        with np.errstate(divide="ignore"):
            inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
        codes = np.clip(np.rint((x - minimum[:, :, None]) * inverse[:, :, None]), 0, 15) * count
        off = (x - (scale[:, :, None] * codes + minimum[:, :, None])) * count
        return cls(codes, scale, minimum, (off.astype(np.float64) ** 2).sum(axis=2))

    def better(self, other: _Fit) -> _Fit:
        """Group by group the one with the smaller error; self where they tie."""
        take = other.error < self.error
        return _Fit(
            np.where(take[:, :, None], other.codes, self.codes),
            np.where(take, other.scale, self.scale),
            np.where(take, other.minimum, self.minimum),
            np.where(take, other.error, self.error),
        )

    def refit(self, x: F32, count: F32) -> _Fit:
        """Scale and minimum by least squares over the codes; self where those are all equal."""
        c, v, n = self.codes.astype(np.float64), x.astype(np.float64) * count, count.sum(axis=1, dtype=np.float64)
        sum_c, sum_x = c.sum(axis=2), v.sum(axis=2)
        determinant = n * (c * c).sum(axis=2) - sum_c * sum_c
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (n * (c * v).sum(axis=2) - sum_c * sum_x) / determinant
            minimum = (sum_x - slope * sum_c) / n
        good = (determinant > 0) & (slope > 0)
        scale = np.where(good, slope, self.scale).astype(np.float32)
        return self.better(_Fit.of(x, count, scale, np.where(good, minimum, self.minimum).astype(np.float32)))


def _quantize_int4m(w: F32) -> Grouped:
    x = in_groups(w)
    count = (np.arange(x.shape[1] * GROUP) < w.shape[1]).reshape(x.shape[1], GROUP).astype(np.float32)
    low = np.where(count > 0, x, np.inf).min(axis=2).astype(np.float32)
    high = np.where(count > 0, x, -np.inf).max(axis=2).astype(np.float32)
    span = high - low
    best = _Fit.of(x, count, span / np.float32(15), low)
    for keep in map(np.float32, KEPT):
        cut = span * (np.float32(1) - keep) / np.float32(2)
        fit = _Fit.of(x, count, span * keep / np.float32(15), low + cut)
        for _ in range(REFITS):
            fit = fit.refit(x, count)
        best = best.better(fit)
    return Grouped(_ungroup(best.codes, w.shape), best.scale, best.minimum)


def _half(x: F32) -> F32:
    """Rounded to binary16."""
    return x.astype(np.float16).astype(np.float32)


def _ungroup(codes: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int32]:
    return codes.astype(np.int32).reshape(shape[0], -1)[:, : shape[1]]


def dense_weight(format: str, source: str, data: U8, n: int, k: int) -> F32:
    """The numbers an execution format holds for source bytes [n, k], as float32."""
    if source in BLOCKS:
        return blocks(source, data, n, k).dense()  # every format that takes these holds them without loss
    values = floats(source, data, n, k)
    if format in ("int8", "int4m"):
        return quantize_weight(format, values).dense()
    return round_bf16(values) if format == "bf16" and source != "bf16" else values
