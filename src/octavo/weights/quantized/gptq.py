"""GPTQ: qweight int32 [k * bits / 32, n], qzeros int32 [groups, n * bits / 32], scales f16 [groups, n], g_idx [k].

Codes lie lowest bits first, in qweight along k, in qzeros along n. Format "gptq" stores zero − 1, "gptq_v2" the zero
itself: value = scale * (code − zero). With act-order (desc_act) g_idx puts each column into any group; columns in
ascending groups of equal length are what it says otherwise. Layout: the AutoGPTQ and GPTQModel exporters' (Frantar et
al. 2022, "GPTQ").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.weights.quantized.coded import (
    FLOAT_TYPES,
    I16,
    U8,
    CodedLinear,
    array,
    finite,
    nibbles,
    unpacked,
)
from octavo.weights.quantized.port import Converted, Parts, columns, group_size, layout, need, one_of, refuse
from octavo.weights.safetensors import SafeTensor


class GPTQ:
    matrix = ".weight"
    leaves = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._bits: int = one_of(config, "bits", (4, 8))
        self._group = group_size(config)
        form = layout(config, "format", "checkpoint_format", allowed=("gptq", "gptq_v2"))
        if config.get("is_marlin_format"):
            raise refuse("is_marlin_format", True, "false")
        overrides = [key for key, value in (config.get("dynamic") or {}).items() if value]
        if overrides:
            raise refuse("dynamic", overrides[0], "only exclusions (-:), no parameters of their own")
        one_of(config, "pack_dtype", ("int32",), "int32")
        self._less = 0 if form == "gptq_v2" else 1
        self._what = f"{form}, {self._bits} bits, {'whole rows' if self._group is None else f'groups of {self._group}'}"

    def quantised(self, parts: Parts) -> bool:
        return "qweight" in parts

    def linear(self, name: str, parts: Parts) -> Converted:
        bits = self._bits
        qweight = need(name, parts, "qweight", dtypes=("I32",), shape=(None, None))
        k, n = qweight.shape[0] * 32 // bits, qweight.shape[1]
        groups = columns(qweight.name, k, self._group)
        scales = need(name, parts, "scales", dtypes=FLOAT_TYPES, shape=(groups, n))
        qzeros = need(name, parts, "qzeros", dtypes=("I32",), shape=(groups, n * bits // 32))
        words = array(qweight)

        def body(first: int, end: int) -> U8:
            rows = np.ascontiguousarray(words[:, first:end].T).view(np.uint8)
            return nibbles(rows, k) if bits == 4 else rows

        def zeros() -> I16:
            # Exporters make zeros of 0 … 2^bits − 1 and store them less one in bits: a stored maximum was 0.
            stored = unpacked(array(qzeros), bits) + self._less
            return np.ascontiguousarray((stored & ((1 << bits) - 1)).T)

        linear = CodedLinear(
            n,
            k,
            bits,
            body,
            lambda: np.ascontiguousarray(finite(scales, array(scales)).T),
            zeros,
            group_of=_scattered(name, parts, k, groups),
        )
        return linear.convert(self._what)


def _scattered(name: str, parts: Parts, k: int, groups: int) -> NDArray[np.int32] | None:
    """The group of each column, or None where groups are runs of equal length."""
    if "g_idx" not in parts:
        return None
    tensor: SafeTensor = need(name, parts, "g_idx", dtypes=("I32", "I64"), shape=(k,))
    return group_index(tensor, k, groups)


def group_index(tensor: SafeTensor, k: int, groups: int) -> NDArray[np.int32] | None:
    """As `_scattered`, of a checked tensor [k]. Raises ModelError for a group that is not there."""
    index = array(tensor)
    if index.min() < 0 or index.max() >= groups:
        raise ModelError(f"tensor {tensor.name}: got groups {index.min()} to {index.max()}, allowed: 0 to {groups - 1}")
    index = index.astype(np.int32)
    return None if np.array_equal(index, np.arange(k) // (k // groups)) else index
