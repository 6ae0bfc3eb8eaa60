"""AWQ ("gemm" layout): qweight int32 [k, n / 8], qzeros int32 [groups, n / 8], scales f16 [groups, n]; 4 bits.

Nibble i of a word, lowest first, belongs to channel ORDER[i] of its eight: value = scale * (code − zero). Layout: the
AutoAWQ exporter's (Lin et al. 2023, "AWQ: Activation-aware Weight Quantization").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.weights.quantized.coded import FLOAT_TYPES, I16, MASK, SHIFT, U8, CodedLinear, array, finite, unpacked
from octavo.weights.quantized.port import Converted, Parts, columns, group_size, layout, need, one_of, refuse

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LANES = np.argsort(ORDER)
"""Nibble that holds each channel."""


class AWQ:
    matrix = ".weight"
    leaves = ("qweight", "qzeros", "scales")

    def __init__(self, config: Mapping[str, Any]) -> None:
        one_of(config, "bits", (4,), 4)
        layout(config, "format", "version", allowed=("gemm",))
        if config.get("backend") == "llm-awq":  # another layout, by another key
            raise refuse("backend", "llm-awq", "files of AutoAWQ's gemm layout")
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
            """Byte t = 2a + b of a word holds channels 4b + a (low nibble) and 4b + a + 2 (high nibble)."""
            assert first % 8 == 0 and end % 8 == 0, (first, end)
            count = (end - first) // 8
            turned = np.ascontiguousarray(words[:, first // 8 : end // 8].T).view(np.uint8).reshape(count * k, 4)
            halves = np.ascontiguousarray(turned.T).view("V16").reshape(4, count, k // 32, 2)  # 16 inputs of a block
            low, high = (np.ascontiguousarray(halves[..., i]).view("<u8").reshape(2, 2, count, k // 16) for i in (0, 1))
            out = np.empty((count, 2, 2, 2, k // 16), np.uint64)  # channel = 4b + 2h + a
            out[:, :, 0] = ((low & MASK) | ((high & MASK) << SHIFT)).transpose(2, 1, 0, 3)
            out[:, :, 1] = (((low >> SHIFT) & MASK) | (high & ~MASK)).transpose(2, 1, 0, 3)
            return out.view(np.uint8).reshape(end - first, k // 32, 16)

        def zeros() -> I16:
            stored = unpacked(array(qzeros), 4).reshape(groups, n // 8, 8)
            return np.ascontiguousarray(stored[:, :, LANES].reshape(groups, n).T)

        linear = CodedLinear(n, k, 4, body, lambda: np.ascontiguousarray(finite(scales, array(scales)).T), zeros)
        return linear.convert(self._what)
