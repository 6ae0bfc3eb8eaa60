"""Block formats of files as codes and scales, exactly: one row a format in `BLOCKS`.

GGML's layouts. q* of 32: f16 scale, f16 minimum where the name ends in _1, 4 bytes of fifth bits in q5_*, 16 bytes
whose low nibbles are elements 0…15 and whose high ones are 16…31. *_k are blocks of 256: f16 scale (and f16 scale of
the minima), and a small integer scale (and minimum) per 16 or 32. iq4_* and mxfp4 look their nibbles up. Some sources
are our own, written by readers of other files as blocks of 32:

    z4           f16 scale, u8 zero, 16 bytes of nibbles as above; x = scale * (code - zero)
    s8           f32 scale, 32 int8; x = scale * code
    q8_0c, s8c   as q8_0 and s8, all blocks of a row with the same scale
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
U8: TypeAlias = NDArray[np.uint8]
I32: TypeAlias = NDArray[np.int32]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32)
"""What a nibble of iq4_nl and iq4_xs stands for."""
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32)
"""Twice what a nibble of mxfp4 (e2m1) stands for; its scale is halved instead."""


class Grouped(Struct, frozen=True):
    """codes i32 [n, k], scale f32 [n, ceil(k / step)], minimum likewise or None: scale * code + minimum."""

    codes: I32
    scale: F32
    minimum: F32 | None
    step: int = 32
    """Codes that share a scale: 32 or 16."""

    def dense(self) -> F32:
        """The numbers, f32 [n, k]: the product is exact in every block format but s8, the sum is rounded once."""
        k = self.codes.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):  # a file may hold infinities
            values = self.codes.astype(np.float32) * np.repeat(self.scale, self.step, axis=1)[:, :k]
            if self.minimum is not None:
                values += np.repeat(self.minimum, self.step, axis=1)[:, :k]
        return values


class Block(Struct, frozen=True):
    """`size` elements in `nbytes` bytes. `decode`: u8 [blocks, nbytes] to codes [blocks, size], scale and minimum
    [blocks, size / step]."""

    size: int
    nbytes: int
    decode: Callable[[U8], tuple[NDArray[Any], F32, F32 | None]]
    step: int = 32


def blocks(source: str, data: U8, n: int, k: int) -> Grouped:
    """Bytes of a block format, [n, k] with k a multiple of its block."""
    block = BLOCKS[source]
    assert k % block.size == 0, (source, k)
    with np.errstate(invalid="ignore"):  # a file may hold infinities and NaNs
        codes, scale, minimum = block.decode(data.reshape(-1, block.nbytes))
    return Grouped(
        np.asarray(codes, np.int32).reshape(n, k),
        np.ascontiguousarray(scale, np.float32).reshape(n, -1),
        None if minimum is None else np.ascontiguousarray(minimum, np.float32).reshape(n, -1),
        block.step,
    )


# -- pieces -----------------------------------------------------------------------------------------------------------
def _half(raw: U8, at: int) -> F32:
    """The f16 at byte `at` of each block, f32 [blocks, 1]."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(body: U8) -> U8:
    """[..., bytes]: all low nibbles, then all high ones."""
    return np.concatenate([body & 15, body >> 4], axis=-1)


def _fifth(raw: U8, at: int) -> NDArray[Any]:
    """32 bits at byte `at`, as 0 or 16, [blocks, 32]."""
    return np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little") << 4


def _six_bit_pairs(s: U8) -> tuple[F32, F32]:
    """Scales and minima of q4_K and q5_K, f32 [blocks, 8] each, from 12 bytes of 6-bit numbers."""
    low, mid, high = s[:, 0:4], s[:, 4:8], s[:, 8:12]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    minimum = np.concatenate([mid & 63, (high >> 4) | (mid >> 6) << 4], axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _two_bits(qs: U8) -> NDArray[Any]:
    """64 bytes of 2-bit fields to [blocks, 256]: in each half of 32 bytes all lowest fields, then the next ones."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return ((qs.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 256)


# -- of 32 ------------------------------------------------------------------------------------------------------------
def _q4_0(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return _nibbles(raw[:, 2:]).astype(np.int32) - 8, _half(raw, 0), None


def _q4_1(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return _nibbles(raw[:, 4:]), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return (_nibbles(raw[:, 6:]) | _fifth(raw, 2)).astype(np.int32) - 16, _half(raw, 0), None


def _q5_1(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return _nibbles(raw[:, 8:]) | _fifth(raw, 4), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return raw[:, 2:].view(np.int8), _half(raw, 0), None


def _iq4_nl(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return IQ4[_nibbles(raw[:, 2:])], _half(raw, 0), None


def _mxfp4(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    # 2^(e - 128), half of e8m0's; the two smallest are denormal.
    scale = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128).astype(np.float32)
    return FP4[_nibbles(raw[:, 1:])], scale, None


def _z4(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    scale = _half(raw, 0)
    return _nibbles(raw[:, 3:]), scale, -(scale * raw[:, 2:3].astype(np.float32))


def _s8(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    return raw[:, 4:].view(np.int8), np.ascontiguousarray(raw[:, :4]).view("<f4"), None


# -- of 256 -----------------------------------------------------------------------------------------------------------
def _q2_k(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    small = raw[:, :16]
    scale = _half(raw, 80) * (small & 15).astype(np.float32)
    return _two_bits(raw[:, 16:80]), scale, -(_half(raw, 82) * (small >> 4).astype(np.float32))


def _q3_k(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    third = np.unpackbits(raw[:, :32], axis=1, bitorder="little").reshape(-1, 32, 8).swapaxes(1, 2).reshape(-1, 256)
    codes = (_two_bits(raw[:, 32:96]) | third << 2).astype(np.int32) - 4
    s = raw[:, 96:108]
    top = (s[:, None, 8:12] >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3).reshape(-1, 16)
    small = (_nibbles(s[:, :8]) | top << 4).astype(np.float32) - np.float32(32)
    return codes, _half(raw, 108) * small, None


def _q4_k(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    scale, minimum = _six_bit_pairs(raw[:, 4:16])
    codes = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return codes, _half(raw, 0) * scale, -(_half(raw, 2) * minimum)


def _q5_k(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    scale, minimum = _six_bit_pairs(raw[:, 4:16])
    fifth = (raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256) << 4
    codes = _nibbles(raw[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256) | fifth
    return codes, _half(raw, 0) * scale, -(_half(raw, 2) * minimum)


def _q6_k(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    low = _nibbles(raw[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = (low | _two_bits(raw[:, 128:192]) << 4).astype(np.int32) - 32
    small = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return codes, _half(raw, 208) * small, None


def _iq4_xs(raw: U8) -> tuple[NDArray[Any], F32, F32 | None]:
    low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=-1).reshape(-1, 8)
    high = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    small = (low | high << 4).astype(np.float32) - np.float32(32)
    return IQ4[_nibbles(raw[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)], _half(raw, 0) * small, None


BLOCKS: dict[str, Block] = {
    "q4_0": Block(32, 18, _q4_0),
    "q4_1": Block(32, 20, _q4_1),
    "q5_0": Block(32, 22, _q5_0),
    "q5_1": Block(32, 24, _q5_1),
    "q8_0": Block(32, 34, _q8_0),
    "q2_k": Block(256, 84, _q2_k, 16),
    "q3_k": Block(256, 110, _q3_k, 16),
    "q4_k": Block(256, 144, _q4_k),
    "q5_k": Block(256, 176, _q5_k),
    "q6_k": Block(256, 210, _q6_k, 16),
    "iq4_nl": Block(32, 18, _iq4_nl),
    "iq4_xs": Block(256, 136, _iq4_xs),
    "mxfp4": Block(32, 17, _mxfp4),
    "z4": Block(32, 19, _z4),
    "s8": Block(32, 36, _s8),
    "q8_0c": Block(32, 34, _q8_0),
    "s8c": Block(32, 36, _s8),
}
