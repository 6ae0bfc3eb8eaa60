"""Linears of integer codes with scales and zero points by group: value = scale * (code − zero).

`CodedLinear.convert` picks the smallest source that holds them exactly:

    codes                                                        source
    4 bits, every zero 8, scales exact in f16                    q4_0
    4 bits, scales exact in f16                                  z4
    4 bits, other scales                                         s8      code − zero in 8 bits under an f32 scale
    8 bits, every zero 128                                       q8_0 (scales exact in f16), else s8
    8 bits, likewise, one scale a row, by token                  q8_0c, else s8c: activations may have one scale a token
    8 bits, other zeros                                          bf16    rounded once: nine bits fit no integer format
    4 bits, columns of a block of 32 in several groups           q8_0    requantised
    8 bits, likewise                                             bf16    rounded once

Reading goes in tiles of rows, so a linear costs its own bytes and a few MB. Plain NumPy over whole bytes: two codes an
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.weights.quantized.port import Converted
from octavo.weights.safetensors import SafeTensor

U8: TypeAlias = NDArray[np.uint8]
I16: TypeAlias = NDArray[np.int16]
F32: TypeAlias = NDArray[np.float32]

BLOCK = 32
MASK, SHIFT = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(4)
"""The low nibbles of eight bytes, and the way to the high ones."""
TILE = 1 << 20
"""Elements treated together. Columns of a file's [k, n] are read so many at a time that its pages pay."""
DENSE_TILE = 1 << 17
"""Likewise where they pass through float32: their bytes stay in a core's second-level cache."""
ITEM_TYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
Q4_0 = np.dtype([("scale", "<f2"), ("codes", "V16")])
Z4 = np.dtype([("scale", "<f2"), ("zero", "u1"), ("codes", "V16")])
Q8_0 = np.dtype([("scale", "<f2"), ("codes", "V32")])
S8 = np.dtype([("scale", "<f4"), ("codes", "V32")])
"""Blocks of the sources (weights.tensors.SOURCES)."""
FLOAT_TYPES = ("F16", "BF16", "F32")


def array(tensor: SafeTensor) -> NDArray[Any]:
    """The tensor's numbers, a read-only view of the mapped file."""
    return np.frombuffer(tensor.data, ITEM_TYPES[tensor.dtype]).reshape(tensor.shape)


def finite(tensor: SafeTensor, values: NDArray[Any]) -> F32:
    """`values` of the tensor as float32. Raises ModelError for an infinity or a NaN."""
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ModelError(f"tensor {tensor.name}: got a scale that is not finite, allowed: finite numbers")
    return numbers


@dataclass(frozen=True, slots=True)
class CodedLinear:
    """A matrix [n, k] of codes; k is a multiple of 32."""

    n: int
    k: int
    bits: int
    """4 or 8."""
    body: Callable[[int, int], U8] = field(repr=False)
    """Codes of rows [first, end). 4 bits: [rows, k / 32, 16], byte j of a block holds code j low and code j + 16 high.
    8 bits: [rows, k]."""
    scales: Callable[[], F32] = field(repr=False)
    """[n, groups], finite."""
    zeros: Callable[[], I16] | None = field(repr=False)
    """[n, groups], 0 … 2^bits − 1; None: the middle of the codes everywhere."""
    step: int = 8
    """Rows of a tile are a multiple of it."""
    group_of: NDArray[np.int32] | None = None
    """Group of each column where groups are no runs of equal length."""

    def convert(self, what: str, *, by_token: bool = False) -> Converted:
        """Choose the source. `what` begins the note: the method and its parameters. `by_token`: 8 bits, centred, one
        scale a row, and the checkpoint wants one a token of its activations."""
        exact16 = self._exact_in_f16()
        centred = self.zeros is None or bool((self.zeros() == 1 << (self.bits - 1)).all())
        if self.group_of is not None:
            source, load = ("q8_0", self._requantised) if self.bits == 4 else ("bf16", self._rounded)
            said = "requantised to 8 bits in groups of 32" if self.bits == 4 else "rounded to bfloat16"
            text = f"{said}, since columns of a group lie scattered (act-order)"
        elif self.bits == 8 and not centred:
            source, load, text = "bf16", self._rounded, "rounded to bfloat16, since 8 bits less a zero point are 9"
        elif self.bits == 4 and exact16:
            source, load, text = ("q4_0" if centred else "z4"), self._four_bits(centred), "kept exactly"
        else:
            source, load, text = ("q8_0" if exact16 else "s8"), self._eight_bits(half=exact16), "kept exactly"
            source += "c" if by_token else ""
        return Converted(source, (self.n, self.k), load, f"{what} -> {source}, {text}")

    # -- tiles ---------------------------------------------------------------------------------------------------------
    def _tiles(self, size: int) -> Iterator[tuple[int, int]]:
        return tiles(self.n, self.k, size=size, step=self.step)

    def _codes(self, first: int, end: int) -> U8:
        """[rows, k] whatever the bits."""
        body = self.body(first, end)
        if self.bits == 8:
            return body
        return np.concatenate([body & 15, body >> 4], axis=2).reshape(end - first, self.k)

    def _zeros(self, groups: int) -> I16:
        if self.zeros is None:
            return np.full((self.n, groups), 1 << (self.bits - 1), np.int16)
        return self.zeros()

    def _exact_in_f16(self) -> bool:
        scales = self.scales()
        with np.errstate(over="ignore"):
            return bool((scales.astype(np.float16).astype(np.float32) == scales).all())

    # -- sources -------------------------------------------------------------------------------------------------------
    def _four_bits(self, centred: bool) -> Callable[[], memoryview]:
        """q4_0 or z4 blocks."""

        def load() -> memoryview:
            scales = self.scales().astype("<f2")
            block = Q4_0 if centred else Z4
            out = np.empty((self.n, self.k // BLOCK), block)
            repeat = self.k // BLOCK // scales.shape[1]
            zeros = None if centred else self._zeros(scales.shape[1]).astype(np.uint8)

            for first, end in self._tiles(TILE):
                out["scale"][first:end] = np.repeat(scales[first:end], repeat, axis=1)
                if zeros is not None:
                    out["zero"][first:end] = np.repeat(zeros[first:end], repeat, axis=1)
                out["codes"][first:end] = self.body(first, end).view("V16")[:, :, 0]
            return out.view(np.uint8).reshape(-1).data

        return load

    def _eight_bits(self, *, half: bool) -> Callable[[], memoryview]:
        """q8_0 or s8 blocks."""

        def load() -> memoryview:
            scales = self.scales().astype("<f2" if half else "<f4")
            groups = scales.shape[1]
            out = np.empty((self.n, self.k // BLOCK), Q8_0 if half else S8)
            repeat = self.k // BLOCK // groups
            zeros = self._zeros(groups).astype(np.uint8)

            for first, end in self._tiles(TILE):
                out["scale"][first:end] = np.repeat(scales[first:end], repeat, axis=1)
                codes = self._codes(first, end).reshape(end - first, groups, -1) - zeros[first:end, :, None]
                out["codes"][first:end] = codes.reshape(end - first, -1, BLOCK).view("V32")[:, :, 0]
            return out.view(np.uint8).reshape(-1).data

        return load

    def _dense(self) -> Iterator[tuple[int, int, F32]]:
        """Tiles (first, end, numbers f32 [rows, k]); exact where scales have at most 15 bits."""
        scales = self.scales()
        zeros = self._zeros(scales.shape[1]).astype(np.float32)
        runs = np.arange(self.k, dtype=np.int32) // (self.k // scales.shape[1])
        of = runs if self.group_of is None else self.group_of
        for first, end in self._tiles(DENSE_TILE):
            numbers = self._codes(first, end).astype(np.float32)
            numbers -= np.take(zeros[first:end], of, axis=1, mode="clip")
            numbers *= np.take(scales[first:end], of, axis=1, mode="clip")
            yield first, end, numbers

    def _rounded(self) -> memoryview:
        """bf16."""
        out = np.empty((self.n, self.k), ml_dtypes.bfloat16)
        for first, end, values in self._dense():
            out[first:end] = values
        return out.view(np.uint8).reshape(-1).data

    def _requantised(self) -> memoryview:
        """q8_0 of the numbers, scales amax / 127: an error of at most amax / 254 where 4 bits had amax / 15."""
        out = np.empty((self.n, self.k // BLOCK), Q8_0)
        for first, end, values in self._dense():
            blocks = values.reshape(end - first, -1, BLOCK)
            scale = (np.maximum(blocks.max(axis=2), -blocks.min(axis=2)) / np.float32(127)).astype("<f2")
            wide = scale.astype(np.float32)
            blocks *= np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)[:, :, None]
            codes = np.clip(np.rint(blocks, out=blocks), -127, 127, out=blocks).astype(np.int8)
            out["scale"][first:end] = scale
            out["codes"][first:end] = codes.view("V32")[:, :, 0]
        return out.view(np.uint8).reshape(-1).data


def tiles(n: int, k: int, *, size: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """Rows [first, end) of an [n, k] in tiles of about `size` elements and a multiple of `step` rows."""
    rows = max(1, size // k // step) * step
    for first in range(0, n, rows):
        yield first, min(first + rows, n)


def nibbles(rows: U8, k: int) -> U8:
    """Rows of bytes [rows, k / 2], code 2i low and 2i + 1 high, as blocks [rows, k / 32, 16] (CodedLinear.body)."""
    low, high = np.ascontiguousarray(rows).view("<u8").reshape(len(rows), k // BLOCK, 2).transpose(2, 0, 1)
    out = np.empty((len(rows), k // BLOCK, 16), np.uint8)
    out[:, :, 0::2] = _bytes((low & MASK) | ((high & MASK) << SHIFT))
    out[:, :, 1::2] = _bytes(((low >> SHIFT) & MASK) | (high & ~MASK))
    return out


def _bytes(words: NDArray[np.uint64]) -> U8:
    return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)


def unpacked(words: NDArray[np.int32], bits: int) -> I16:
    """int32 [a, b] -> codes [a, b * 32 / bits], lowest bits first: zero points, which are few."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 4:
        raw = np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1)
    return raw.astype(np.int16)
