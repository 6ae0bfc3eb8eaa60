"""How rope frequencies are stretched past the length a model was trained on: one Struct a kind.

Each turns the plain frequencies theta^(-2i/rotary) into its own, in decimal arithmetic (correctly rounded in software:
docs/numerics.md, "Rows"), and says by how much cos and sin are multiplied. Kinds that depend on the length of a
sequence are fixed by the longest one that is served (`length`), never by the one at hand: a result must not depend on
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

from msgspec import Struct

TWO_PI = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494")


class Plain(Struct, frozen=True):
    """Facts every kind starts from: `rotary` columns turn, by theta^(-2i/rotary); `length` positions are served."""

    rotary: int
    theta: float
    length: int

    def frequencies(self) -> list[Decimal]:
        return power_law(Decimal(self.theta).ln(), self.rotary, self.rotary // 2)


def power_law(log_theta: Decimal, rotary: int, count: int) -> list[Decimal]:
    """theta^(-2i/rotary) for i < count."""
    return [(-log_theta * 2 * i / rotary).exp() for i in range(count)]


class LinearScaling(Struct, frozen=True, tag="linear"):
    """All frequencies divided by `factor`. Source: Chen et al. 2023, position interpolation."""

    factor: float

    def frequencies(self, plain: Plain) -> list[Decimal]:
        return [f / Decimal(self.factor) for f in plain.frequencies()]


class DynamicScaling(Struct, frozen=True, tag="dynamic"):
    """theta grown so that the lowest frequency reaches `length`; nothing up to the original length.

    Source: the NTK-aware scaling of `rope_type` "dynamic", with the longest served length for the current one.
    """

    factor: float
    original_len: int

    def frequencies(self, plain: Plain) -> list[Decimal]:
        length = max(plain.length, self.original_len)
        factor = Decimal(self.factor)
        growth = factor * length / self.original_len - (factor - 1)
        exponent = Decimal(plain.rotary) / (plain.rotary - 2)
        return power_law(Decimal(plain.theta).ln() + exponent * growth.ln(), plain.rotary, plain.rotary // 2)

    def reach(self) -> int:
        """Positions the kind stretches to."""
        return int(self.factor * self.original_len)

    def note(self, length: int) -> str:
        if length <= self.original_len:
            return f"dynamic: {length} positions served, {self.original_len} trained: frequencies as trained"
        return f"dynamic: frequencies stretched for {length} positions served ({self.original_len} trained)"


class Llama3Scaling(Struct, frozen=True, tag="llama3"):
    """Llama 3.1's stretch: long wavelengths are slowed by `factor`, short ones kept, between them a linear blend.

    Source: `rope_scaling` of the Llama 3.1 checkpoints. A dimension that turns `turns = original_len * freq / 2π` times
    over the original length keeps its frequency from `high_freq_factor` turns on, and is divided by `factor` up to
    `low_freq_factor` turns.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int

    def frequencies(self, plain: Plain) -> list[Decimal]:
        low, high, factor = Decimal(self.low_freq_factor), Decimal(self.high_freq_factor), Decimal(self.factor)
        found = []
        for freq in plain.frequencies():
            turns = freq * self.original_len / TWO_PI
            kept = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
            found.append((1 - kept) * freq / factor + kept * freq)
        return found


class YarnScaling(Struct, frozen=True, tag="yarn"):
    """Dimensions that turn often over the original length are kept, those that turn seldom divided by `factor`, with a
    ramp over dimensions between; cos and sin times `attention`. Source: Peng et al. 2023, YaRN.
    """

    factor: float
    original_len: int
    attention: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """The ramp starts and ends on whole dimensions."""

    def frequencies(self, plain: Plain) -> list[Decimal]:
        first, last = (self._dimension(beta, plain) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = Decimal(math.floor(first)), Decimal(math.ceil(last))
        first, last = max(first, Decimal(0)), min(last, Decimal(plain.rotary - 1))
        if first == last:
            last += Decimal("0.001")
        found = []
        for i, freq in enumerate(plain.frequencies()):
            slowed = min(max((i - first) / (last - first), Decimal(0)), Decimal(1))
            found.append(slowed * freq / Decimal(self.factor) + (1 - slowed) * freq)
        return found

    def _dimension(self, turns: float, plain: Plain) -> Decimal:
        """Where a dimension turns so many times over the original length."""
        ratio = self.original_len / (Decimal(turns) * TWO_PI)
        return plain.rotary * ratio.ln() / (2 * Decimal(plain.theta).ln())

    def reach(self) -> int:
        """Positions the kind stretches to."""
        return int(self.factor * self.original_len)


class LongRopeScaling(Struct, frozen=True, tag="longrope"):
    """Each frequency divided by a factor of its own: `short` up to the original length served, `long` beyond; cos and
    sin times `attention`. Source: Ding et al. 2024, LongRoPE; the Phi-3 checkpoints.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_len: int
    attention: float

    def frequencies(self, plain: Plain) -> list[Decimal]:
        factors: Sequence[float] = self.long if plain.length > self.original_len else self.short
        return [f / Decimal(factor) for f, factor in zip(plain.frequencies(), factors, strict=True)]

    def note(self, length: int) -> str:
        chosen = "long" if length > self.original_len else "short"
        return f"longrope: {chosen} factors, for {length} positions served ({self.original_len} trained)"


class ProportionalScaling(Struct, frozen=True, tag="proportional"):
    """The first `turning` pairs of the head turn, by theta^(-2i/rotary) of the whole head; the rest stand still.

    Source: `rope_type` "proportional" (Gemma's full-attention layers).
    """

    turning: int
    factor: float = 1.0

    def frequencies(self, plain: Plain) -> list[Decimal]:
        moving = power_law(Decimal(plain.theta).ln(), plain.rotary, self.turning)
        return [f / Decimal(self.factor) for f in moving] + [Decimal(0)] * (plain.rotary // 2 - self.turning)


Scaling: TypeAlias = (
    LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling | ProportionalScaling
)
