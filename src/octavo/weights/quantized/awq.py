"""AWQ ("gemm" layout): qweight int32 [k, n / 8], qzeros int32 [groups, n / 8], scales f16 [groups, n]; 4 bits.

Nibble i of a word, lowest first, belongs to channel ORDER[i] of its eight: value = scale * (code − zero). Layout: the
AutoAWQ exporter's (Lin et al. 2023, "AWQ: Activation-aware Weight Quantization").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import ModelError
from octavo.weights.quantized.coded import FLOAT_TYPES, I16, U8, CodedLinear, array, finite, unpacked
from octavo.weights.quantized.port import Converted, Parts, columns, group_size, need, one_of

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LANES = np.argsort(ORDER)
"""Nibble that holds each channel."""


class AWQ:
    leaves = ("qweight", "qzeros", "scales")

    def __init__(self, config: Mapping[str, Any]) -> None:
        one_of(config, "bits", (4,), 4)
        one_of(config, "version", ("gemm", "GEMM"), "gemm")
        self._group = group_size(config)
        self._what = f"awq, 4 bits, {'whole rows' if self._group is None else f'groups of {self._group}'}"

    def quantised(self, parts: Parts) -> bool:
        return "qweight" in parts

    def linear(self, name: str, parts: Parts) -> Converted:
        qweight = need(name, parts, "qweight", dtypes=("I32",), shape=(None, None))
        k, n = qweight.shape[0], qweight.shape[1] * 8
        groups = columns(qweight.name, k, self._group)
        scales = need(name, parts, "scales", dtypes=FLOAT_TYPES, shape=(groups, n))
        qzeros = need(name, parts, "qzeros", dtypes=("I32",), shape=(groups, n // 8))
        words = array(qweight)

        def body(first: int, end: int) -> U8:
            """A word of eight channels at column c and at column c + 16 gives a byte of each channel's block."""
            if first % 8:
                raise ModelError(f"tensor {qweight.name}: got rows from {first}, allowed: multiples of 8")
            raw = np.ascontiguousarray(words[:, first // 8 : end // 8]).view(np.uint8)
            count = (end - first) // 8
            # bytes of a word: t = 2a + b holds channels 4b + a (low nibble) and 4b + a + 2 (high nibble)
            at = raw.reshape(k // 32, 2, 16, count, 2, 2)
            out = np.empty((count, 2, 2, 2, k // 32, 16), np.uint8)  # channel = 4b + 2h + a
            here, there = at[:, 0], at[:, 1]
            out[:, :, 0] = ((here & 15) | (there << 4)).transpose(2, 4, 3, 0, 1)
            out[:, :, 1] = ((here >> 4) | (there & 0xF0)).transpose(2, 4, 3, 0, 1)
            return out.reshape(end - first, k // 32, 16)

        def zeros() -> I16:
            stored = unpacked(array(qzeros), 4).reshape(groups, n // 8, 8)
            return np.ascontiguousarray(stored[:, :, LANES].reshape(groups, n).T)

        linear = CodedLinear(n, k, 4, body, lambda: np.ascontiguousarray(finite(scales, array(scales)).T), zeros)
        return linear.convert(self._what)
