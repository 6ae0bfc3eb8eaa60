"""Weights in every file format, packed, beside what they mean in float64. Shared by the linear and the pack tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.kernels.reference.blocks import BLOCKS, blocks
from octavo.quant import table

F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

NATIVE_SOURCE = {
    "f32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0", "int4m": "q4_1", "int8f": "s8", "int4z": "z4",
    "int4k": "q4_k", "int5": "q5_0", "int5m": "q5_1", "int5k": "q5_k", "int6k": "q6_k", "int3k": "q3_k",
    "int2k": "q2_k", "int4n": "iq4_nl", "int4x": "iq4_xs", "int4e": "mxfp4", "int8t": "s8c",
}  # fmt: skip
"""Execution format -> the source that fills it."""
FORMATS = tuple(NATIVE_SOURCE)
HALVES = {
    "q8_0": (0,), "q8_0c": (0,), "q4_0": (0,), "q5_0": (0,), "iq4_nl": (0,), "iq4_xs": (0,), "z4": (0,), "q3_k": (108,),
    "q6_k": (208,), "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q2_k": (80, 82),
}  # fmt: skip
"""Where the f16 scale, and that of the minima, lie in a block."""


def aligned(nbytes: int, fill: int = 0) -> U8:
    """A 64-byte aligned array."""
    whole = np.full(nbytes + 64, fill, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + nbytes]


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Nearest even; x finite."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(h: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (h.astype(np.uint32) << 16).view(np.float32)


def source(kind: str, n: int, k: int, rng: np.random.Generator) -> tuple[U8, F64]:
    """Random rows of a file format: bytes and the numbers they stand for, [n, k].

    Blocks are random bytes with scales of a moderate size; kernels/reference/blocks.py says what they mean.
    """
    if kind in ("f32", "f16", "bf16"):
        x = rng.standard_normal((n, k)).astype(np.float32)
        if kind == "f32":
            return x.view(np.uint8).reshape(-1), x.astype(np.float64)
        if kind == "f16":
            half = x.astype(np.float16)
            half[0, 0] = np.float16(3e-7)  # an f16 denormal
            return half.view(np.uint8).reshape(-1), half.astype(np.float64)
        short = to_bf16(x)
        return short.view(np.uint8).reshape(-1), from_bf16(short).astype(np.float64)
    block = BLOCKS[kind]
    raw = rng.integers(0, 256, (n * k // block.size, block.nbytes), dtype=np.uint8)
    for at in HALVES.get(kind, ()):
        d = (rng.uniform(0.5, 1.5, len(raw)) / 100).astype(np.float16)
        if at == HALVES[kind][0]:
            d[0] = np.float16(6e-8)
        elif kind in ("q4_1", "q5_1"):
            d = -d
        raw[:, at : at + 2] = d.view(np.uint8).reshape(-1, 2)
    if kind == "mxfp4":
        raw[:, 0] = rng.integers(108, 126, len(raw))
    elif kind == "z4":
        raw[:, 2] %= 17
    elif kind in ("s8", "s8c"):
        scale = (rng.uniform(-1, 1, len(raw)) / 100).astype(np.float32)
        raw[:, :4] = scale.view(np.uint8).reshape(-1, 4)
    if kind in table.BY_TOKEN:
        head = block.nbytes - block.size
        blocks_of = raw.reshape(n, -1, block.nbytes)
        blocks_of[:, :, :head] = blocks_of[:, :1, :head]
    return raw.reshape(-1).copy(), blocks(kind, raw.reshape(-1), n, k).dense().astype(np.float64)


def source_of(fmt: str, k: int) -> str | None:
    """What fills a format with rows of k: its own source, floats where k is no multiple of its block, or None."""
    kind = NATIVE_SOURCE[fmt]
    if kind not in BLOCKS or k % BLOCKS[kind].size == 0:
        return kind
    return "f32" if fmt in ("int8", "int4m") else None


@dataclass(frozen=True)
class Packed:
    """A packed weight and the float64 matrix [n, k] that it means."""

    format: str
    n: int
    k: int
    panels: U8
    numbers: F64


def unpacked(fmt: str, n: int, k: int, panels: U8) -> NDArray[np.float32]:
    out = np.zeros((n, k), np.float32)
    _native.unpack_rows(fmt, n, k, panels, np.arange(n, dtype=np.int32), out)
    return out


def packed(fmt: str, n: int, k: int, rng: np.random.Generator) -> Packed:
    """From `source_of` the format. Stale bytes lie in the destination."""
    kind = source_of(fmt, k)
    assert kind is not None, (fmt, k)
    src, numbers = source(kind, n, k, rng)
    panels = aligned(_native.packed_bytes(fmt, n, k), fill=0xFF)
    _native.pack(fmt, kind, n, k, src, panels, 0, n, 2)
    if kind == "f32" and fmt != "f32":
        numbers = unpacked(fmt, n, k, panels).astype(np.float64)
    return Packed(fmt, n, k, panels, numbers)


def rows_for(fmt: str) -> str:
    return table.FORMATS[fmt].activation


def rows(fmt: str, x: NDArray[np.float32], team: object, isa: str = "scalar") -> tuple[U8, F64]:
    """x [m, k] as the activation rows of a format: bytes, and the numbers they stand for."""
    m, k = x.shape
    stride = _native.row_bytes(rows_for(fmt), k)
    out = aligned(m * stride)
    if fmt == "f32":
        out.reshape(m, stride)[:, : 4 * k] = x.view(np.uint8)
        return out, x.astype(np.float64)
    if fmt == "bf16":
        short = to_bf16(x)
        out.reshape(m, stride)[:, : 2 * k] = short.view(np.uint8)
        return out, from_bf16(short).astype(np.float64)
    if rows_for(fmt) == "q8t":
        _native.quantize_rows(team, isa, x, out, token=True)
        by_token, scale, _ = q8t_parts(out, m, k)
        return out, by_token[:, :k] * scale.astype(np.float64)
    _native.quantize_rows(team, isa, x, out)
    codes, scales, _ = q8_parts(out, m, k)
    return out, (codes * scales[..., None].astype(np.float64)).reshape(m, -1)[:, :k]


def q8t_parts(data: U8, m: int, k: int) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]]:
    """Codes [m, k up to 32], scales and sums of codes [m, 1] of q8t rows."""
    at = -(-k // 32) * 32
    raw = data.reshape(m, -1)
    scale, total = (np.ascontiguousarray(raw[:, first : first + 4]) for first in (at, at + 4))
    return raw[:, :at].view(np.int8), scale.view(np.float32), total.view(np.int32)


def q8_parts(data: U8, m: int, k: int) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Codes [m, groups, 32], scales and sums [m, groups] of q8 rows."""
    groups = -(-k // 32)
    raw = data.reshape(m, -1)
    codes = raw[:, : 32 * groups].view(np.int8).reshape(m, groups, 32)
    scales = np.ascontiguousarray(raw[:, 32 * groups : 36 * groups]).view(np.float32)
    sums = np.ascontiguousarray(raw[:, 36 * groups : 40 * groups]).view(np.float32)
    return codes, scales, sums
