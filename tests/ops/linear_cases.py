"""Weights in every file format, packed, beside what they mean in float64. Shared by the linear and the pack tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo import _native

F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

FORMATS = ("f32", "bf16", "int8", "int4", "int4m")
NATIVE_SOURCE = {"f32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0", "int4m": "q4_1"}


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

    Block layouts: q8_0 = f16 d, int8[32]; q4_0 = f16 d, 16 bytes; q4_1 = f16 d, f16 m, 16 bytes (GGUF).
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
    groups = k // 32
    d = (rng.uniform(0.5, 1.5, (n, groups)) / 100).astype(np.float16)
    d[0, 0] = np.float16(6e-8)
    if kind == "q8_0":
        a = np.zeros((n, groups), np.dtype([("d", "<f2"), ("q", "i1", (32,))]))
        a["d"], a["q"] = d, rng.integers(-128, 128, (n, groups, 32))
        w = d.astype(np.float64)[..., None] * a["q"]
    else:
        fields = (
            [("d", "<f2"), ("q", "u1", (16,))] if kind == "q4_0" else [("d", "<f2"), ("m", "<f2"), ("q", "u1", (16,))]
        )
        a = np.zeros((n, groups), np.dtype(fields))
        a["d"], a["q"] = d, rng.integers(0, 256, (n, groups, 16))
        codes = np.concatenate([a["q"] & 15, a["q"] >> 4], axis=-1).astype(np.float64)
        if kind == "q4_0":
            w = d.astype(np.float64)[..., None] * (codes - 8)
        else:
            a["m"] = -rng.uniform(0, 0.1, (n, groups))
            w = d.astype(np.float64)[..., None] * codes + a["m"].astype(np.float64)[..., None]
    return a.view(np.uint8).reshape(-1).copy(), w.reshape(n, k)


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
    """From the format's own source, or from f32 where k is no multiple of 32. Stale bytes lie in the destination."""
    kind = "f32" if k % 32 and fmt in ("int8", "int4m") else NATIVE_SOURCE[fmt]
    src, numbers = source(kind, n, k, rng)
    panels = aligned(_native.packed_bytes(fmt, n, k), fill=0xFF)
    _native.pack(fmt, kind, n, k, src, panels, 0, n, 2)
    if kind == "f32" and fmt != "f32":
        numbers = unpacked(fmt, n, k, panels).astype(np.float64)
    return Packed(fmt, n, k, panels, numbers)


def rows_for(fmt: str) -> str:
    return {"f32": "f32", "bf16": "bf16"}.get(fmt, "q8")


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
    _native.quantize_rows(team, isa, x, out)
    codes, scales, _ = q8_parts(out, m, k)
    return out, (codes * scales[..., None].astype(np.float64)).reshape(m, -1)[:, :k]


def q8_parts(data: U8, m: int, k: int) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Codes [m, groups, 32], scales and sums [m, groups] of q8 rows."""
    groups = -(-k // 32)
    table = data.reshape(m, -1)
    codes = table[:, : 32 * groups].view(np.int8).reshape(m, groups, 32)
    scales = np.ascontiguousarray(table[:, 32 * groups : 36 * groups]).view(np.float32)
    sums = np.ascontiguousarray(table[:, 36 * groups : 40 * groups]).view(np.float32)
    return codes, scales, sums
