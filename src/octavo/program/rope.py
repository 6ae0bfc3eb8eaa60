"""Rotary position tables, made once at load in binary64 from basic operations only (docs/numerics.md, "Rows").

Frequencies come from `decimal` (correctly rounded in software), sine and cosine from the series below, so no library's
variant and no CPU's instruction set enters the table.
"""

from __future__ import annotations

import hashlib
from decimal import Context, localcontext
from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.program.rope_kinds import TWO_PI, Plain, Scaling

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]

_PI = TWO_PI / 2


class RopeSpec(Struct, frozen=True):
    """Frequencies theta^(-2i/rotary), i < rotary/2, or what `scaling` makes of them."""

    rotary: int
    theta: float
    scaling: Scaling | None = None

    @property
    def name(self) -> str:
        """One name for one spec, for tables and listings."""
        if self.scaling is None:
            return f"rope({self.rotary}, {self.theta:g})"
        tag = hashlib.blake2b(msgspec.json.encode(self.scaling), digest_size=3).hexdigest()
        return f"rope({self.rotary}, {self.theta:g}, {self.scaling.__struct_config__.tag} {tag})"

    @property
    def attention(self) -> float:
        """By how much cos and sin are multiplied."""
        return float(getattr(self.scaling, "attention", 1.0))

    def reach(self, trained: int) -> int:
        """Positions that can be served by a model whose config states `trained`."""
        stretch = getattr(self.scaling, "reach", None)
        return max(trained, stretch()) if stretch else trained

    def note(self, length: int) -> str | None:
        """For the log: which factors serving `length` positions fixes; None where no factor depends on it."""
        note = getattr(self.scaling, "note", None)
        return note(length) if note else None

    def frequencies(self, length: int) -> F64:
        """[rotary / 2] in radians per position where `length` positions are served, each rounded to binary32, as
        checkpoints are trained and run."""
        plain = Plain(self.rotary, self.theta, length)
        with localcontext(Context(prec=40)):
            exact = plain.frequencies() if self.scaling is None else self.scaling.frequencies(plain)
            values = [float(f) for f in exact]
        return np.asarray(values, np.float32).astype(np.float64)

    def table(self, rows: int) -> tuple[F32, F32]:
        """cos and sin times `attention`, f32 [rows, rotary / 2], of position * frequency, where `rows` are served."""
        return _table(self, rows)


@lru_cache(maxsize=4)
def _table(spec: RopeSpec, rows: int) -> tuple[F32, F32]:
    """Pure, so the cache is safe; cos and sin are asked for one after the other. Results are read-only."""
    freq, attention = spec.frequencies(rows), spec.attention
    cos = np.empty((rows, len(freq)), np.float32)
    sin = np.empty_like(cos)
    for first in range(0, rows, 4096):  # bounded scratch at 128k positions
        angle = np.arange(first, min(first + 4096, rows), dtype=np.float64)[:, None] * freq[None, :]
        s, c = sin_cos(angle)
        cos[first : first + len(angle)] = c * attention
        sin[first : first + len(angle)] = s * attention
    cos.flags.writeable = sin.flags.writeable = False
    return cos, sin


# π/2 in three pieces; n·_P1 and n·_P2 are exact for n < 2²⁰, so the reduced angle is good to about 1e-16.
_P1 = float.fromhex("0x1.921fb54400000p+0")
_P2 = float.fromhex("0x1.0b4611a600000p-34")
_P3 = float.fromhex("0x1.3198a2e037073p-69")
_SIN = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000)
_COS = (-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200)


def sin_cos(x: F64) -> tuple[F64, F64]:
    """sin(x) and cos(x) for 0 <= x < 10⁶, absolute error below 1e-14, from +, -, * and rounding alone.

    Reduced to |r| <= π/4 by multiples of π/2, then the Taylor series to r¹⁵ and r¹⁴ (the next terms are below 3e-16).
    """
    n = np.rint(x * (2 / float(_PI)))
    r = ((x - n * _P1) - n * _P2) - n * _P3
    r2 = r * r
    s = np.zeros_like(r)
    c = np.zeros_like(r)
    for a, b in zip(reversed(_SIN), reversed(_COS), strict=True):
        s = (s + a) * r2
        c = (c + b) * r2
    s = r + r * s
    c = 1.0 + c
    quadrant = n.astype(np.int64) & 3
    odd = (quadrant & 1).astype(bool)
    sin = np.where(odd, c, s)
    cos = np.where(odd, s, c)
    return np.where(quadrant >= 2, -sin, sin), np.where((quadrant == 1) | (quadrant == 2), -cos, cos)
