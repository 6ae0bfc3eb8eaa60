"""Tiny quantised directories for tests: codes drawn first, then written in each exporter's layout, one word at a time.

    made = write_quantized(tmp_path, "awq")    # made.directory, made.dense: the matrices that the codes mean

Nothing of Octavo's readers inside; the truth comes from the codes, not from the packed words.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.tiny import VARIANTS, tiny_config, tiny_weights, write_safetensors, write_tiny

F32 = NDArray[np.float32]
GROUP = 32
CODES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
Stored = Mapping[str, tuple[str, NDArray[Any]]]
"""Leaf -> (dtype of the file, values)."""
Encoder = Callable[[F32, np.random.Generator], tuple[Stored, F32]]
"""A float matrix -> what is stored beside its module, and the matrix that this means."""


@dataclass(frozen=True)
class Made:
    directory: Path
    dense: Path
    """The same model with the meant matrices as float32."""
    matrices: dict[str, F32]


def words(codes: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """Codes along the last axis into int32 words; nibble i of a word is code order[i] of its eight."""
    per = 32 // bits
    out = np.zeros((*codes.shape[:-1], codes.shape[-1] // per), np.uint64)
    for i in range(per):
        out |= codes[..., (order[i] if order else i) :: per].astype(np.uint64) << np.uint64(bits * i)
    return np.asarray(out.astype(np.uint32).view(np.int32))


def groups_of(
    w: F32, rng: np.random.Generator, *, bits: int, group: int | None, index: NDArray[Any] | None = None, kind: str
) -> tuple[NDArray[Any], F32, NDArray[Any]]:
    """(codes [n, k], scales [n, G] of float type `kind`, zeros [n, G]) near `w`."""
    n, k = w.shape
    count = 1 if group is None else k // group
    of = np.arange(k) // (k // count) if index is None else index
    top = 2**bits - 1
    zeros = rng.integers(top // 2 - 1, top // 2 + 3, (n, count))
    scales = np.stack([np.abs(w[:, of == g]).max(axis=1) for g in range(count)], axis=1) * 2 / top
    scales = scales.astype(CODES[kind]).astype(np.float32)
    codes = np.clip(np.rint(w / scales[:, of]) + zeros[:, of], 0, top).astype(np.int64)
    return codes, scales, zeros


def meant(codes: NDArray[Any], scales: F32, zeros: NDArray[Any], index: NDArray[Any] | None = None) -> F32:
    k = codes.shape[1]
    of = np.arange(k) // (k // scales.shape[1]) if index is None else index
    return np.asarray((codes - zeros[:, of]) * scales.astype(np.float64)[:, of], np.float32)


def awq(*, group: int | None = GROUP, kind: str = "F16") -> Encoder:
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def encode(w: F32, rng: np.random.Generator) -> tuple[Stored, F32]:
        codes, scales, zeros = groups_of(w, rng, bits=4, group=group, kind=kind)
        stored: dict[str, tuple[str, NDArray[Any]]] = {
            "qweight": ("I32", words(codes.T, 4, order)),
            "qzeros": ("I32", words(zeros.T, 4, order)),
            "scales": (kind, scales.T),
        }
        return stored, meant(codes, scales, zeros)

    return encode


def gptq(*, bits: int = 4, act_order: bool = False, symmetric: bool = False, v2: bool = False) -> Encoder:
    def encode(w: F32, rng: np.random.Generator) -> tuple[Stored, F32]:
        index = np.arange(w.shape[1]) // GROUP
        if act_order:
            index = rng.permutation(index)
        codes, scales, zeros = groups_of(w, rng, bits=bits, group=GROUP, index=index, kind="F16")
        if symmetric:
            zeros[:] = 2 ** (bits - 1)
        stored: dict[str, tuple[str, NDArray[Any]]] = {
            "qweight": ("I32", words(codes, bits).T),
            "qzeros": ("I32", words((zeros - (0 if v2 else 1)).T, bits)),
            "scales": ("F16", scales.T),
            "g_idx": ("I32", index),
        }
        return stored, meant(codes, scales, zeros, index)

    return encode


def packed(*, bits: int = 4, symmetric: bool = True, kind: str = "BF16", old_zeros: bool = False) -> Encoder:
    """compressed-tensors pack-quantized."""

    def encode(w: F32, rng: np.random.Generator) -> tuple[Stored, F32]:
        codes, scales, zeros = groups_of(w, rng, bits=bits, group=GROUP, kind=kind)
        stored: dict[str, tuple[str, NDArray[Any]]] = {
            "weight_packed": ("I32", words(codes, bits)),
            "weight_scale": (kind, scales),
            "weight_shape": ("I64", np.array(w.shape)),
        }
        if symmetric:
            zeros[:] = 2 ** (bits - 1)
        elif old_zeros:
            stored["weight_zero_point"] = ("I8", zeros - 2 ** (bits - 1))
        else:
            stored["weight_zero_point"] = ("I32", words(zeros.T, bits).T)
        return stored, meant(codes, scales, zeros)

    return encode


def whole_bytes(*, kind: str = "BF16") -> Encoder:
    """compressed-tensors int-quantized, a scale a row."""

    def encode(w: F32, rng: np.random.Generator) -> tuple[Stored, F32]:
        codes, scales, _ = groups_of(w, rng, bits=8, group=None, kind=kind)
        zeros = np.full_like(scales, 128)
        stored: dict[str, tuple[str, NDArray[Any]]] = {"weight": ("I8", codes - 128), "weight_scale": (kind, scales)}
        return stored, meant(codes, scales, zeros)

    return encode


def fp8(
    *,
    block: int | None = None,
    per_row: bool = False,
    kind: str = "F8_E4M3",
    leaf: str = "weight_scale",
    unused: str = "input_scale",
) -> Encoder:
    """`unused`: the leaf of a scale of activations, which are no 8-bit floats here."""

    def encode(w: F32, rng: np.random.Generator) -> tuple[Stored, F32]:
        n, k = w.shape
        height, width = (block, block) if block else (1, k) if per_row else (n, k)
        scales = rng.uniform(0.002, 0.02, (-(-n // height), -(-k // width))).astype(np.float32)
        spread = scales.repeat(height, 0)[:n].repeat(width, 1)[:, :k]
        codes = np.clip(w / spread, -448, 448).astype(CODES[kind])
        shown = scales if block or per_row else scales.reshape(())
        stored: dict[str, tuple[str, NDArray[Any]]] = {
            "weight": (kind, codes),
            leaf: ("F32", shown),
            unused: ("F32", np.ones(1)),
        }
        return stored, (codes.astype(np.float32) * spread).astype(ml_dtypes.bfloat16).astype(np.float32)

    return encode


def _ct(form: str, weights: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": {"type": "int", "dynamic": False, **weights}, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    }


_AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
_INT4 = {"num_bits": 4, "strategy": "group", "group_size": GROUP}
_INT8 = {"num_bits": 8, "strategy": "channel", "symmetric": True}
_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}

KINDS: dict[str, tuple[dict[str, Any], Encoder, str]] = {
    "awq": (_AWQ, awq(), "z4"),
    "awq-row": ({**_AWQ, "group_size": -1}, awq(group=None), "z4"),
    "awq-f32-scales": (_AWQ, awq(kind="F32"), "s8"),
    "gptq": (_GPTQ, gptq(), "z4"),
    "gptq-symmetric": ({**_GPTQ, "sym": True}, gptq(symmetric=True), "q4_0"),
    "gptq-v2": ({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq(v2=True), "z4"),
    "gptq-act-order": ({**_GPTQ, "desc_act": True}, gptq(act_order=True), "q8_0"),
    "gptq-8": ({**_GPTQ, "bits": 8}, gptq(bits=8), "bf16"),
    "gptq-8-symmetric": ({**_GPTQ, "bits": 8, "sym": True}, gptq(bits=8, symmetric=True), "q8_0"),
    "gptq-8-act-order": ({**_GPTQ, "bits": 8}, gptq(bits=8, act_order=True), "bf16"),
    "ct-w4a16": (_ct("pack-quantized", {**_INT4, "symmetric": True}), packed(), "q4_0"),
    "ct-w4a16-zeros": (_ct("pack-quantized", {**_INT4, "symmetric": False}), packed(symmetric=False), "z4"),
    "ct-w4a16-old-zeros": (
        _ct("pack-quantized", {**_INT4, "symmetric": False}),
        packed(symmetric=False, old_zeros=True),
        "z4",
    ),
    "ct-w8a16": (_ct("pack-quantized", {**_INT4, "num_bits": 8, "symmetric": True}), packed(bits=8), "q8_0"),
    "ct-w8a8": (_ct("int-quantized", _INT8, input_activations=_TOKEN), whole_bytes(), "q8_0c"),
    "ct-w8a8-f32-scales": (_ct("int-quantized", _INT8), whole_bytes(kind="F32"), "s8"),
    "ct-fp8": (_ct("float-quantized", {**_FP8, "strategy": "channel"}), fp8(per_row=True), "bf16"),
    "ct-fp8-naive": (_ct("naive-quantized", _FP8), fp8(), "bf16"),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8(), "bf16"),
    "fp8-e5m2": ({"quant_method": "fp8"}, fp8(kind="F8_E5M2"), "bf16"),
    "fp8-block": (
        {"quant_method": "fp8", "weight_block_size": [48, 48], "activation_scheme": "dynamic"},
        fp8(block=48, leaf="weight_scale_inv"),
        "bf16",
    ),
    "fbgemm-fp8": (
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
        fp8(per_row=True, unused="input_scale_ub"),
        "bf16",
    ),
}
"""Name -> quantization_config, its encoder, and the source type that holds its numbers."""


def write_quantized(path: Path, kind: str, *, family: str = "llama", seed: int = 0, **overrides: Any) -> Made:
    """A tiny model of `family` (as write_tiny's) with every linear but the head and routers stored as `kind` says, and
    its dense twin. Every expert has tensors of its own, as exporters write them."""
    config, encode, _ = KINDS[kind]
    directory, dense = write_tiny(path / kind, family, seed=seed, **overrides), path / f"{kind}-dense"
    settings = json.loads((directory / "config.json").read_text())
    model_type, base = VARIANTS.get(family, (family, {}))
    weights = tiny_weights(tiny_config(model_type, **{**base, **overrides}), seed=seed)
    rng = np.random.default_rng(seed + 1)
    tensors: dict[str, tuple[str, NDArray[Any]]] = {}
    matrices: dict[str, F32] = {}
    for name, value in weights.items():
        if not (name.endswith("_proj.weight") or ".experts." in name):
            tensors[name] = ("F32", value)
            continue
        module = name.removesuffix(".weight")
        stored, matrices[name] = encode(value, rng)
        tensors |= {f"{module}.{leaf}": entry for leaf, entry in stored.items()}
    write_any(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    write_tiny(dense, family, seed=seed, tokenizer=False, **overrides)
    write_safetensors(dense / "model.safetensors", {**weights, **matrices})
    return Made(directory, dense, matrices)


def write_any(path: Path, tensors: Stored) -> None:
    """A safetensors file of any dtypes."""
    header: dict[str, Any] = {}
    blobs: list[bytes] = []
    at = 0
    for name, (code, value) in tensors.items():
        data = np.asarray(value).astype(CODES[code]).tobytes()
        header[name] = {"dtype": code, "shape": list(np.shape(value)), "data_offsets": [at, at + len(data)]}
        at += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_any(path: Path) -> dict[str, Any]:
    """What write_any wrote."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    found = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        begin, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + length + begin : 8 + length + end], CODES[entry["dtype"]])
        found[name] = (entry["dtype"], data.reshape(entry["shape"]))
    return found
