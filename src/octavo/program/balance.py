"""Loud dims of keys, told by the bias that makes them so: what an int8 cache divides K by and multiplies q with."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

MOST = 8
"""Powers of two; Qwen2.5 asks for as many. q has 12 bits a code, so that what K gains q can afford to lose."""


class Balance(Struct, frozen=True):
    """Makes a vector of factors out of a bias [heads * head_dim] of keys whose first `rotary` dims are turned in pairs
    (d, d + rotary / 2)."""

    heads: int
    rotary: int

    def of(self, bias: NDArray[np.float32]) -> NDArray[np.float32]:
        """Powers of two, at least 1, f32 of the same shape; q is multiplied by them and k divided: no score changes.

        A dim that a bias lifts to b above the median of its head (and above 1, where a key without bias is at home)
        takes from all others the resolution of their common scale: its factor is b over that, to the nearest power of
        two. Dims that a rotation mixes share one. Source: channel-wise keys as in Liu et al. 2024 (KIVI), migrated to
        q as in Xiao et al. 2023 (SmoothQuant).
        """
        loud = np.abs(bias.reshape(self.heads, -1).astype(np.float64))
        half = self.rotary // 2
        pair = np.hypot(loud[:, :half], loud[:, half : self.rotary])
        loud = np.concatenate([pair, pair, loud[:, self.rotary :]], axis=1)
        loud = np.nan_to_num(loud)
        usual = np.maximum(np.median(loud, axis=1, keepdims=True), 1.0)
        power = np.minimum(np.rint(np.log2(np.maximum(loud / usual, 1.0))), MOST)
        factors: NDArray[np.float32] = np.exp2(power).astype(np.float32)
        return factors.reshape(bias.shape)
