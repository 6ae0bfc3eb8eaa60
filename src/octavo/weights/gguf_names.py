"""A GGUF file -> a Checkpoint under Hugging Face names; gguf_architectures.py has what differs between families."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.errors import ModelError
from octavo.weights.experts import split_experts
from octavo.weights.front import gguf_templates, gguf_vocabulary
from octavo.weights.gguf import GGML_TYPES, GGUFArray, GGUFTensor
from octavo.weights.gguf_architectures import Architecture, architecture
from octavo.weights.gguf_metadata import Metadata
from octavo.weights.gguf_parts import GGUFModel, open_parts
from octavo.weights.gguf_rope import rope_scaling
from octavo.weights.gguf_unread import refuse_unread
from octavo.weights.gguf_windows import windows
from octavo.weights.tensors import SOURCES, Checkpoint, Tensor

CONTROL = 3
"""Token type of control tokens in tokenizer.ggml.token_type."""
END_TEXTS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "</s>")
)
"""Control tokens that end a turn whatever the file's eos_token_id says (files name only one of them)."""


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF file, or all parts of a split one, as a Checkpoint. Raises ModelError, FileFormatError."""
    file = open_parts(path)
    name = file.metadata.get("general.architecture")
    meta = Metadata(file, str(name))
    arch = architecture(name, path, experts=meta.get(".expert_count", int, 0) > 0)
    config = _config(meta, arch)
    tensors = _tensors(file, arch, config)
    return Checkpoint(
        path=path,
        config=config,
        tensors=tensors,
        tokenizer_spec=gguf_vocabulary(file.metadata, config["eos_token_id"]),
        chat_templates=gguf_templates(file.metadata),
        generation_config={"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
        content_id=_content_id(file),
    )


def _config(meta: Metadata, arch: Architecture) -> dict[str, Any]:
    tensors = meta.file.tensors
    hidden, heads = meta.size(".embedding_length"), meta.size(".attention.head_count")
    head_dim = meta.size(".attention.key_length", hidden // heads or None)
    value_dim = meta.size(".attention.value_length", head_dim)
    if head_dim != value_dim:
        meta.fail(".attention.value_length", value_dim, f"the key length, {head_dim}")
    rotary = meta.size(".rope.dimension_count", head_dim)
    config: dict[str, Any] = {
        "model_type": arch.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": meta.size(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.size(".attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.size(".feed_forward_length"),
        "hidden_act": "silu",
        "rms_norm_eps": meta.get(".attention.layer_norm_rms_epsilon", float, 1e-6),
        "rope_theta": meta.get(".rope.freq_base", float, 10_000.0),
        "rope_scaling": rope_scaling(meta, rotary),
        "vocab_size": _vocabulary(meta),
        "max_position_embeddings": meta.size(".context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        **windows(meta, known=arch.windows, default=arch.default_window),
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": _eos_ids(meta),
    }
    if rotary != head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    config |= arch.config(meta)
    refuse_unread(meta, config)
    return config


def _vocabulary(meta: Metadata) -> int:
    """Rows of the embedding; where it is missing or no matrix (which is refused with all else that is), what the
    metadata says."""
    embedding = meta.file.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        return embedding.shape[0]
    tokens = meta.file.metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, GGUFArray) else 0
    return meta.size(".vocab_size", count or None)


def _eos_ids(meta: Metadata) -> list[int]:
    """Every id that ends a turn: the file's own, and control tokens whose text says so."""
    tokens, types = (meta.file.metadata.get("tokenizer.ggml." + key) for key in ("tokens", "token_type"))
    ids = {meta.get(f"tokenizer.ggml.{key}_token_id", int) for key in ("eos", "eot", "eom")} - {None}
    if isinstance(tokens, GGUFArray) and isinstance(types, GGUFArray):
        marked = (i for i, kind in enumerate(types.tolist()) if kind == CONTROL and i < len(tokens))
        ids.update(i for i in marked if tokens[i] in END_TEXTS)
    return sorted(ids)


def _tensors(file: GGUFModel, arch: Architecture, config: Mapping[str, Any]) -> dict[str, Tensor]:
    unsupported = Counter(t.type for t in file.tensors.values() if t.type.lower() not in SOURCES)
    if unsupported:
        found = ", ".join(f"{kind} ({count} tensors)" for kind, count in sorted(unsupported.items()))
        allowed = ", ".join(kind for kind, _, _ in GGML_TYPES.values() if kind.lower() in SOURCES)
        word = "tensor type" if len(unsupported) == 1 else "tensor types"
        raise ModelError(f"{file.path}: {word} {found} not supported yet: allowed {allowed}")
    tensors: dict[str, Tensor] = {}
    unknown: dict[str, Tensor] = {}
    for tensor in file.tensors.values():
        if tensor.name in arch.ignored:
            continue
        name = arch.name(tensor.name, config["num_hidden_layers"])
        if name is None:  # handed on, for the one refusal that names all that is wrong; no model has such a name
            stored = f"{tensor.name} (as stored)"
            unknown[stored] = Tensor(stored, tensor.type.lower(), tensor.shape, _Reader(tensor, 0))
            continue
        heads = arch.heads(tensor.name, config)
        if heads and tensor.shape[0] % (2 * heads):
            heads = 0  # no whole heads, so a wrong shape: refused with the others
        tensors[name] = Tensor(name, tensor.type.lower(), tensor.shape, _Reader(tensor, heads))
    return split_experts(tensors, file.path) | unknown


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


def _content_id(file: GGUFModel) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in file.parts:
        first = min((t.offset for t in part.tensors.values()), default=len(part.buffer))
        digest.update(part.buffer[:first])
        digest.update(struct.pack("<Q", len(part.buffer)))
        for tensor in part.tensors.values():
            digest.update(tensor.data[:4096])
    return digest.digest()
