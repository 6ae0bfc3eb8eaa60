"""FP8: weight F8_E4M3 (or E5M2) [n, k] and a scale a tensor, a row or a block; value = weight * scale.

`weight_scale` f32 [], [1], [n] or [n, 1]; `weight_scale_inv` f32 [n / block, k / block] (a factor too, whatever its
name says), edge blocks short. No execution format has 8-bit floats, so the product is rounded once to bfloat16: 2⁻⁹
relative at most, a 32nd of the half step of a number with three stored bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.weights.quantized.coded import FLOAT_TYPES, ITEM_TYPES, TILE, array, finite, tiles
from octavo.weights.quantized.port import Converted, Parts, need, one_of, refuse
from octavo.weights.safetensors import SafeTensor

FP8_TYPES = ("F8_E4M3", "F8_E5M2")
INFINITY = 0x7F80
"""Exponent bits of a bfloat16 that is no number."""


class FP8:
    matrix = ".weight"
    leaves = (
        *("weight", "weight_scale", "weight_scale_inv", "input_scale", "input_scale_ub"),
        *("output_scale", "k_scale", "v_scale"),
    )
    """Scales of activations and of the KV cache are not used: neither is 8-bit float here."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        one_of(config, "activation_scheme", ("dynamic", "static"), "dynamic")
        given = config.get("weight_block_size") is not None
        self._block = block_sizes(config, "weight_block_size") if given else None

    def quantised(self, parts: Parts) -> bool:
        return "weight" in parts and parts["weight"].dtype in FP8_TYPES

    def linear(self, name: str, parts: Parts) -> Converted:
        return fp8_linear(name, parts, block=self._block, what="fp8")


def block_sizes(config: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Rows and columns that share a scale, from the last word of `key`."""
    value = config.get(key.rpartition(".")[2])
    if isinstance(value, list) and len(value) == 2:
        height, width = value
        if type(height) is int and type(width) is int and min(value) >= 1 and max(value) <= 1 << 20:
            return height, width
    raise refuse(key, value, "two sizes, as in [128, 128]")


def fp8_linear(name: str, parts: Parts, *, block: tuple[int, int] | None, what: str) -> Converted:
    """A matrix of 8-bit floats with its scales, as bf16."""
    weight = need(name, parts, "weight", dtypes=FP8_TYPES, shape=(None, None))
    n, k = weight.shape
    scale, height, width = _scale(name, parts, (n, k), block)

    def load() -> memoryview:
        codes = array(weight).view(np.uint8)
        factors = finite(scale, array(scale)).reshape(-(-n // height), -(-k // width))
        every = np.arange(256, dtype=np.uint8).view(ITEM_TYPES[weight.dtype]).astype(np.float32)
        with np.errstate(over="ignore"):  # a code can become 256 numbers, so they are looked up
            tables = (factors[:, :, None] * every).astype(ml_dtypes.bfloat16).view(np.uint16)
        out = np.empty((n, k), np.uint16)

        for first, end in tiles(n, k, size=TILE, step=min(height, n)):
            for i in range(first // height, -(-end // height)):
                rows = slice(max(first, i * height), min(end, (i + 1) * height))
                for j in range(factors.shape[1]):
                    cols = slice(j * width, (j + 1) * width)
                    out[rows, cols] = np.take(tables[i, j], codes[rows, cols], mode="clip")
            if ((out[first:end] & INFINITY) == INFINITY).any():
                raise ModelError(f"tensor {weight.name}: got a NaN or infinity, allowed: finite numbers")

        return out.view(np.uint8).reshape(-1).data

    kind = "a tensor" if height >= n and width >= k else "a row" if height == 1 else f"a block of {height} x {width}"
    return Converted("bf16", (n, k), load, f"{what}, a scale {kind} -> bf16, value times scale rounded once")


def _scale(
    name: str, parts: Parts, shape: tuple[int, int], block: tuple[int, int] | None
) -> tuple[SafeTensor, int, int]:
    """The tensor of scales, and how many rows and columns share one."""
    n, k = shape
    leaf = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    if block is not None:
        height, width = block
        wanted = (-(-n // height), -(-k // width))
        return need(name, parts, leaf, dtypes=FLOAT_TYPES, shape=wanted), height, width
    found = parts.get(leaf)
    got = found.shape if found is not None else ()
    if got in ((n, 1), (n,)) and got != (1,):
        return need(name, parts, leaf, dtypes=FLOAT_TYPES, shape=got), 1, k
    return need(name, parts, leaf, dtypes=FLOAT_TYPES, shape=(1,) * min(len(got), 2)), n, k


def float8(tensor: SafeTensor) -> NDArray[np.uint8]:
    """8-bit floats without a scale as bf16 bytes, exactly."""
    return array(tensor).astype(ml_dtypes.bfloat16).view(np.uint8).reshape(-1)
