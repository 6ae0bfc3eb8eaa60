"""compressed-tensors: one `format` a group of modules, each group with the scheme of its weights.

    pack-quantized   weight_packed int32 [n, k * bits / 32], weight_scale [n, groups], weight_shape [2];
                     asymmetric: weight_zero_point int32 [n * bits / 32, groups]; act-order: weight_g_idx [k]
    int-quantized    weight int8 [n, k], weight_scale [n, 1] or [1]; symmetric                     (W8A8)
    float-quantized, naive-quantized   weight F8_E4M3 and weight_scale (fp8.py); naive also int8 as above

Packed codes are signed codes plus 2^(bits − 1), lowest bits first along k, zero points along n. What a scheme says of
activations is followed where the user asks for it and it says int8 with one scale a token beside weights of 8 bits with
one a row (W8A8). Otherwise ours are 8-bit codes with a scale for each 32 columns, which is finer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import ModelError
from octavo.weights.quantized.coded import (
    F32,
    FLOAT_TYPES,
    I16,
    U8,
    CodedLinear,
    array,
    finite,
    nibbles,
    unpacked,
)
from octavo.weights.quantized.fp8 import FP8_TYPES, block_sizes, fp8_linear
from octavo.weights.quantized.gptq import group_index
from octavo.weights.quantized.port import Converted, Parts, columns, group_size, need, one_of, refuse

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
MOST_BY_TOKEN = 1 << 17
"""Columns whose products of int8 codes add up in 31 bits."""
STRATEGIES = ("tensor", "channel", "group", "block")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One of `config_groups`: which modules, and how their weights are stored."""

    targets: tuple[str, ...]
    form: str
    """A key of FORMATS."""
    bits: int
    kind: str
    """int or float."""
    strategy: str
    group: int | None
    symmetric: bool
    block: tuple[int, int] | None
    by_token: bool
    """Whether activations are to be int8, with one scale a token that is made as they come."""

    @property
    def what(self) -> str:
        per = {"group": f"groups of {self.group}", "block": "blocks", "channel": "whole rows", "tensor": "one scale"}
        return f"compressed-tensors {self.form}, {self.bits} bits, {per[self.strategy]}"


class CompressedTensors:
    matrix = ".weight"
    leaves = (
        *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
        *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point"),
        *("k_scale", "v_scale", "k_zero_point", "v_zero_point"),
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        one_of(config, "quantization_status", ("compressed", "frozen"), "compressed")
        for key in ("sparsity_config", "transform_config"):
            if _says_something(config.get(key)):
                raise refuse(key, config[key], "none (sparse or transformed weights are not read)")
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise refuse("config_groups", groups, "a scheme for at least one group of modules")
        self._schemes = [_scheme(f"config_groups.{key}", value, config.get("format")) for key, value in groups.items()]
        self._ignore = _names("ignore", config.get("ignore") or [])

    def quantised(self, parts: Parts) -> bool:
        if "weight_packed" in parts:
            return True
        return "weight" in parts and (parts["weight"].dtype == "I8" or parts["weight"].dtype in FP8_TYPES)

    def linear(self, name: str, parts: Parts) -> Converted:
        if any(_matches(pattern, name) for pattern in self._ignore):
            raise ModelError(f"tensor {name}.weight: got a quantised one, allowed: plain numbers (it is in `ignore`)")
        for wanted in (_matches, _is_class):  # a module's own name goes before its class
            for scheme in self._schemes:
                if any(wanted(target, name) for target in scheme.targets):
                    return READERS[scheme.form](scheme, name, parts)
        raise ModelError(f"tensor {name}.weight: got a quantised one, allowed: modules that config_groups targets")


def _packed(scheme: Scheme, name: str, parts: Parts) -> Converted:
    bits = scheme.bits
    if scheme.kind != "int" or bits not in (4, 8):
        raise refuse("config_groups.weights", f"{scheme.kind} of {bits} bits", "int of 4 or 8 bits (pack-quantized)")
    packed = need(name, parts, "weight_packed", dtypes=("I32",), shape=(None, None))
    n, k = packed.shape[0], packed.shape[1] * 32 // bits
    if "weight_shape" in parts:
        said = need(name, parts, "weight_shape", dtypes=("I64", "I32"), shape=(2,))
        if array(said).tolist() != [n, k]:
            raise ModelError(f"tensor {said.name}: got {array(said).tolist()}, allowed: {[n, k]}, as packed")
    groups = columns(packed.name, k, scheme.group)
    scale = need(name, parts, "weight_scale", dtypes=FLOAT_TYPES, shape=(n, groups))
    words = array(packed)

    def body(first: int, end: int) -> U8:
        rows = np.ascontiguousarray(words[first:end]).view(np.uint8)
        return nibbles(rows, k) if bits == 4 else rows

    zeros = None if scheme.symmetric else _zero_points(name, parts, (n, groups), bits)
    index = None
    if "weight_g_idx" in parts:
        tensor = need(name, parts, "weight_g_idx", dtypes=("I32", "I64"), shape=(k,))
        index = None if (array(tensor) == -1).all() else group_index(tensor, k, groups)
    linear = CodedLinear(n, k, bits, body, lambda: finite(scale, array(scale)), zeros, group_of=index)
    return linear.convert(scheme.what)


def _zero_points(name: str, parts: Parts, shape: tuple[int, int], bits: int) -> Callable[[], I16]:
    """[n, groups]: packed along n, or signed bytes in older exports."""
    n, groups = shape
    found = parts.get("weight_zero_point")
    if found is not None and found.dtype == "I8":
        plain = need(name, parts, "weight_zero_point", dtypes=("I8",), shape=shape)
        middle = 1 << (bits - 1)
        if np.abs(array(plain) + 0.5).max() > middle:
            raise ModelError(
                f"tensor {plain.name}: got a zero point past {bits} bits, allowed: {-middle} to {middle - 1}"
            )
        return lambda: array(plain).astype(np.int16) + np.int16(middle)
    stored = need(name, parts, "weight_zero_point", dtypes=("I32",), shape=(-(-n * bits // 32), groups))
    return lambda: np.ascontiguousarray(unpacked(array(stored).T, bits)[:, :n].T)


def _whole_bytes(scheme: Scheme, name: str, parts: Parts) -> Converted:
    """int8 codes as they are. As unsigned codes around 128 they are CodedLinear's."""
    if not scheme.symmetric or scheme.strategy not in ("channel", "tensor", "group"):
        got = f"{'symmetric' if scheme.symmetric else 'asymmetric'}, {scheme.strategy}"
        raise refuse("config_groups.weights", got, "symmetric; a scale a tensor, a row or a group (int-quantized)")
    weight = need(name, parts, "weight", dtypes=("I8",), shape=(None, None))
    n, k = weight.shape
    groups = columns(weight.name, k, scheme.group)
    if scheme.strategy == "tensor":
        shape = parts["weight_scale"].shape if "weight_scale" in parts else (1,)
        scale = need(name, parts, "weight_scale", dtypes=FLOAT_TYPES, shape=(1,) * min(len(shape), 2))
    else:
        scale = need(name, parts, "weight_scale", dtypes=FLOAT_TYPES, shape=(n, groups))
    codes = array(weight)

    def scales() -> F32:
        return np.ascontiguousarray(np.broadcast_to(finite(scale, array(scale)).reshape(-1, groups), (n, groups)))

    linear = CodedLinear(n, k, 8, lambda first, end: codes[first:end].view(np.uint8) ^ np.uint8(128), scales, None)
    by_token = scheme.by_token and scheme.strategy == "channel" and k <= MOST_BY_TOKEN
    return linear.convert(scheme.what, by_token=by_token)


def _floats(scheme: Scheme, name: str, parts: Parts) -> Converted:
    if scheme.bits != 8 or not scheme.symmetric:
        raise refuse("config_groups.weights", f"float of {scheme.bits} bits", "symmetric, of 8 bits")
    return fp8_linear(name, parts, block=scheme.block, what=scheme.what)


def _either(scheme: Scheme, name: str, parts: Parts) -> Converted:
    return (_whole_bytes if scheme.kind == "int" else _floats)(scheme, name, parts)


READERS: Mapping[str, Callable[[Scheme, str, Parts], Converted]] = {
    "pack-quantized": _packed,
    "int-quantized": _whole_bytes,
    "float-quantized": _floats,
    "naive-quantized": _either,
}


def _scheme(key: str, group: Any, form: Any) -> Scheme:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise refuse(f"{key}.weights", weights, "a scheme of weights")
    form = group.get("format") or form
    if form not in FORMATS:
        raise refuse("format", form, ", ".join(FORMATS))
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") not in (None, -1) else "tensor")
    if strategy not in STRATEGIES:
        raise refuse(f"{key}.weights.strategy", strategy, ", ".join(STRATEGIES))
    return Scheme(
        targets=_names(f"{key}.targets", group.get("targets") or []),
        form=form,
        bits=one_of(weights, "num_bits", (4, 8)),
        kind=one_of(weights, "type", ("int", "float"), "int"),
        strategy=strategy,
        group=group_size(weights) if strategy == "group" else None,
        symmetric=one_of(weights, "symmetric", (True, False), True),
        block=block_sizes(weights, f"{key}.weights.block_structure") if strategy == "block" else None,
        by_token=_by_token(group.get("input_activations")),
    )


def _by_token(inputs: Any) -> bool:
    wanted = {"num_bits": 8, "strategy": "token", "dynamic": True}
    said = inputs if isinstance(inputs, Mapping) else {}
    plain = said.get("type", "int") == "int" and said.get("symmetric", True) is True
    return plain and all(said.get(key) == value for key, value in wanted.items())


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, str) for v in value):
        raise refuse(key, value, "a list of names")
    for pattern in value:
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except (re.error, RecursionError) as error:
                raise refuse(key, pattern, f"a regular expression after re: ({error})") from None
    return tuple(value)


def _matches(pattern: str, module: str) -> bool:
    """By regular expression after `re:`, else by the whole name."""
    return re.match(pattern[3:], module) is not None if pattern.startswith("re:") else module == pattern


def _is_class(target: str, module: str) -> bool:
    """Every quantised module here is a linear."""
    return target == "Linear"


def _says_something(value: Any) -> bool:
    """Whether a table of options asks for anything (exporters write empty ones, or a "dense" format)."""
    if isinstance(value, Mapping):
        return bool({k: v for k, v in value.items() if v}) and value.get("format") != "dense"
    return bool(value)
