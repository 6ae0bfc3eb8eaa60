"""Reference weights: a checkpoint's bytes as codes and scales, an execution format's numbers as a dense float32 matrix.

Block layouts of the sources are GGML's: q8_0 = f16 scale, 32 int8; q4_0 = f16 scale, 16 bytes, code j in the low nibble
of byte j and code j + 16 in its high nibble, minus 8; q4_1 = f16 scale, f16 min, nibbles likewise, no offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.kernels.reference.rows import GROUP, in_groups, round_bf16

F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]

BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
ITEM_TYPES = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class Grouped:
    """codes i32 [n, k] (signed; 0…15 where there is a minimum), scale f32 [n, G], minimum f32 [n, G] or None."""

    codes: NDArray[np.int32]
    scale: F32
    minimum: F32 | None

    def dense(self) -> F32:
        """scale * code (+ minimum), f32 [n, k]."""
        k = self.codes.shape[1]
        values = self.codes.astype(np.float32) * np.repeat(self.scale, GROUP, axis=1)[:, :k]
        if self.minimum is not None:
            values += np.repeat(self.minimum, GROUP, axis=1)[:, :k]
        return values


def floats(source: str, data: U8, n: int, k: int) -> F32:
    """f32, f16 or bf16 bytes [n, k] as float32, exactly."""
    return np.asarray(data.view(ITEM_TYPES[source]).reshape(n, k), np.float32)


def blocks(source: str, data: U8, n: int, k: int) -> Grouped:
    """q8_0, q4_0 or q4_1 bytes [n, k] (k a multiple of 32) as codes and scales."""
    assert k % GROUP == 0, (source, k)
    raw = data.reshape(n, k // GROUP, BLOCK_BYTES[source])
    scale = np.ascontiguousarray(raw[:, :, :2]).view("<f2").astype(np.float32)[:, :, 0]
    if source == "q8_0":
        return Grouped(raw[:, :, 2:].view(np.int8).astype(np.int32).reshape(n, k), scale, None)
    body = raw[:, :, -16:]
    codes = np.concatenate([body & 15, body >> 4], axis=2).astype(np.int32).reshape(n, k)
    if source == "q4_0":
        return Grouped(codes - 8, scale, None)
    minimum = np.ascontiguousarray(raw[:, :, 2:4]).view("<f2").astype(np.float32)[:, :, 0]
    return Grouped(codes, scale, minimum)


def quantize_weight(format: str, w: F32) -> Grouped:
    """Float weights [n, k] to int8 (scale = amax / 127) or int4m (scale = (max − min) / 15); both are rounded to f16.

    Codes are rounded to nearest even against the rounded scale, so a weight's error is at most about half a step. A
    group whose scale rounds to 0 has codes 0.
    """
    n, k = w.shape
    g = in_groups(w)
    if format == "int8":
        low = np.zeros(g.shape[:2], np.float32)
        step = np.abs(g).max(axis=2) / np.float32(127)
    else:
        # Padding takes no part in the range.
        tail = np.arange(g.shape[1] * GROUP).reshape(g.shape[1], GROUP) >= k
        low = np.where(tail, np.inf, g).min(axis=2).astype(np.float16).astype(np.float32)
        step = (np.where(tail, -np.inf, g).max(axis=2).astype(np.float32) - low) / np.float32(15)
    scale = step.astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    codes = np.rint((g - low[:, :, None]) * inverse[:, :, None])
    limits = (-127, 127) if format == "int8" else (0, 15)
    codes = np.clip(codes, *limits).astype(np.int32).reshape(n, -1)[:, :k]
    return Grouped(codes, scale, None if format == "int8" else low)


def dense_weight(format: str, source: str, data: U8, n: int, k: int) -> F32:
    """The numbers an execution format holds for source bytes [n, k], as float32."""
    if source in BLOCK_BYTES:
        return blocks(source, data, n, k).dense()  # every format that takes these holds them without loss
    values = floats(source, data, n, k)
    if format in ("int8", "int4m"):
        return quantize_weight(format, values).dense()
    return round_bf16(values) if format == "bf16" and source != "bf16" else values
