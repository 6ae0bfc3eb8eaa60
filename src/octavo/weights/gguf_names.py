"""GGUF names and conventions -> Hugging Face ones, for the llama and qwen2 architectures.

Two things differ beyond names. llama.cpp stores the q and k rows of `llama` models so that rotary pairs are neighbours
(2i, 2i + 1); Hugging Face pairs i with i + head_dim / 2. Rows are moved back here, as whole rows of bytes, so quantised
blocks are untouched. And the scaling of Llama 3's rope is stored as a tensor of factors, not as parameters.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from octavo.errors import FileFormatError, ModelError
from octavo.weights.gguf import GGUFArray, GGUFFile, GGUFTensor
from octavo.weights.tensors import SOURCES, Checkpoint, Tensor

ARCHITECTURES = ("llama", "qwen2")
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
IGNORED = ("rope_freqs.weight",)
CONTROL = 3
"""Token type of control tokens in tokenizer.ggml.token_type."""
END_TEXTS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "</s>")
)
"""Control tokens that end a turn whatever the file's eos_token_id says (files name only one of them)."""


class _Metadata:
    """Typed reads of metadata keys; the architecture's prefix is filled in for keys that start with a dot."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        full = self.arch + key if key.startswith(".") else key
        value: Any = self.file.metadata.get(full)
        if value is None:
            return default
        kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if isinstance(value, bool) != (kind is bool) or type(value) not in kinds:
            self.fail(full, type(value).__name__, kind.__name__)
        if kind is float and not math.isfinite(value):
            self.fail(full, value, "a finite number")
        return kind(value) if kind in (int, float) else value

    def fail(self, key: str, got: object, allowed: str) -> NoReturn:
        full = self.arch + key if key.startswith(".") else key
        raise FileFormatError(f"{self.file.path}: {full}: got {got}, allowed: {allowed}")

    def size(self, key: str, default: int | None = None) -> int:
        """A count that must be there (or has a default) and lies in 1 … 2^31."""
        value = self.get(key, int, default)
        if value is None or not 0 < value < 2**31:
            self.fail(key, value, "a whole number from 1 to 2147483647")
        return int(value)


def open_gguf(path: Path) -> Checkpoint:
    """Opens one GGUF file as a Checkpoint. Raises ModelError, FileFormatError."""
    file = GGUFFile(path)
    arch = file.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise ModelError(f"{path}: general.architecture: got {arch!r}, allowed: {allowed} (more are not supported yet)")
    meta = _Metadata(file, str(arch))
    if meta.get("split.count", int, 1) > 1:
        raise ModelError(f"{path}: one part of a split GGUF; join the parts first (llama-gguf-split --merge)")
    config = _config(meta)
    tensors = _tensors(file, config)
    template = meta.get("tokenizer.chat_template", str)
    tokens = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    return Checkpoint(
        path=path,
        config=config,
        tensors=tensors,
        tokenizer_spec={"format": "gguf", "metadata": tokens, "eos_ids": config["eos_token_id"]},
        chat_template=template,
        generation_config={"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
        content_id=_content_id(file),
    )


def _config(meta: _Metadata) -> dict[str, Any]:
    tensors = meta.file.tensors
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{meta.file.path}: no tensor token_embd.weight of two dimensions")
    hidden, heads = meta.size(".embedding_length"), meta.size(".attention.head_count")
    head_dim = meta.size(".attention.key_length", hidden // heads or None)
    value_dim = meta.size(".attention.value_length", head_dim)
    if head_dim != value_dim:
        meta.fail(".attention.value_length", value_dim, f"the key length, {head_dim}")
    rotary = meta.size(".rope.dimension_count", head_dim)
    model_type = meta.arch if not meta.get(".expert_count", int, 0) else meta.arch + " with experts"
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": meta.size(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size(".attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.size(".feed_forward_length"),
        "hidden_act": "silu",
        "rms_norm_eps": meta.get(".attention.layer_norm_rms_epsilon", float, 1e-6),
        "rope_theta": meta.get(".rope.freq_base", float, 10_000.0),
        "rope_scaling": _rope_scaling(meta, head_dim),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": meta.size(".context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "sliding_window": meta.get(".attention.sliding_window", int) or None,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": _eos_ids(meta),
    }
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    return config


def _rope_scaling(meta: _Metadata, head_dim: int) -> dict[str, Any] | None:
    kind = meta.get(".rope.scaling.type", str, "none")
    factor = meta.get(".rope.scaling.factor", float, meta.get(".rope.scale_linear", float, 1.0))
    freqs = meta.file.tensors.get("rope_freqs.weight")
    if freqs is not None:
        return _llama3_scaling(meta, freqs, head_dim)
    if kind == "none" or factor == 1.0:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    original = meta.get(".rope.scaling.original_context_length", int)
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3_scaling(meta: _Metadata, tensor: GGUFTensor, head_dim: int) -> dict[str, Any] | None:
    """Finds the parameters whose factors are the stored ones: Llama 3.1 to 3.3 differ in `factor` only."""
    count = head_dim // 2
    if tensor.type != "F32" or tensor.shape != (count,):
        meta.fail("rope_freqs.weight", f"{tensor.type} {tensor.shape}", f"F32 ({count},)")
    got = struct.unpack(f"<{count}f", tensor.data)
    if all(value == 1.0 for value in got):
        return None
    factor, low, high, original = max(got), 1.0, 4.0, 8192
    theta = meta.get(".rope.freq_base", float, 10_000.0)
    for i, value in enumerate(got):
        wave = 2 * math.pi * theta ** (2 * i / head_dim)
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        want = 1 / ((1 - smooth) / factor + smooth)
        if not math.isclose(want, value, rel_tol=1e-4):
            raise ModelError(f"{meta.file.path}: rope_freqs.weight: got unknown factors, allowed: Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": float(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _eos_ids(meta: _Metadata) -> list[int]:
    """Every id that ends a turn: the file's own, and control tokens whose text says so."""
    tokens, types = (meta.file.metadata.get("tokenizer.ggml." + key) for key in ("tokens", "token_type"))
    ids = {meta.get(f"tokenizer.ggml.{key}_token_id", int) for key in ("eos", "eot", "eom")} - {None}
    if isinstance(tokens, GGUFArray) and isinstance(types, GGUFArray):
        marked = (i for i, kind in enumerate(types.tolist()) if kind == CONTROL and i < len(tokens))
        ids.update(i for i in marked if tokens[i] in END_TEXTS)
    return sorted(ids)


def _hf_name(name: str, num_layers: int) -> str | None:
    if name in TOP:
        return TOP[name]
    prefix, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    stem, _, kind = rest.rpartition(".")
    if prefix != "blk" or not layer.isdecimal() or int(layer) >= num_layers or kind not in ("weight", "bias"):
        return None
    return f"model.layers.{int(layer)}.{LAYER[stem]}.{kind}" if stem in LAYER else None


def _tensors(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Tensor]:
    unsupported = Counter(t.type for t in file.tensors.values() if t.type.lower() not in SOURCES)
    if unsupported:
        found = ", ".join(f"{kind} ({count} tensors)" for kind, count in sorted(unsupported.items()))
        allowed = ", ".join(source.upper() for source in SOURCES)
        word = "tensor type" if len(unsupported) == 1 else "tensor types"
        raise ModelError(f"{file.path}: {word} {found} not supported yet: allowed {allowed}")
    tensors: dict[str, Tensor] = {}
    for tensor in file.tensors.values():
        if tensor.name in IGNORED:
            continue
        name = _hf_name(tensor.name, config["num_hidden_layers"])
        if name is None:
            raise ModelError(f"{file.path}: tensor {tensor.name} is none that {config['model_type']} models have")
        heads = 0
        if config["model_type"] == "llama" and ".q_proj." in name:
            heads = config["num_attention_heads"]
        elif config["model_type"] == "llama" and ".k_proj." in name:
            heads = config["num_key_value_heads"]
        if heads and tensor.shape[0] % (2 * heads):
            got, allowed = tensor.shape[0], f"a multiple of {2 * heads}"
            raise FileFormatError(f"{file.path}: rows of {tensor.name}: got {got}, allowed: {allowed}")
        tensors[name] = Tensor(name, tensor.type.lower(), tensor.shape, _Reader(tensor, heads))
    return tensors


class _Reader:
    """Reads one tensor; heads > 0 says its rows are in llama.cpp's rotary order of that many heads."""

    __slots__ = ("heads", "tensor")

    def __init__(self, tensor: GGUFTensor, heads: int) -> None:
        self.tensor, self.heads = tensor, heads

    def __call__(self) -> bytes | memoryview:
        data = self.tensor.data
        if not self.heads:
            return data
        rows = self.tensor.shape[0]
        half, size = rows // self.heads // 2, len(data) // rows
        return b"".join(
            data[row * size : (row + 1) * size]
            for head in range(0, rows, 2 * half)
            for part in (0, 1)
            for row in range(head + part, head + 2 * half, 2)
        )


def _content_id(file: GGUFFile) -> bytes:
    first = min((t.offset for t in file.tensors.values()), default=len(file.buffer))
    digest = hashlib.blake2b(file.buffer[:first], digest_size=32)
    digest.update(struct.pack("<Q", len(file.buffer)))
    for tensor in file.tensors.values():
        digest.update(tensor.data[:4096])
    return digest.digest()
