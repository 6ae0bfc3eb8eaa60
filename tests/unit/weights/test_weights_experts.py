"""Experts stored together, in GGUF files and directories, are those stored one by one: names, shapes, bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.errors import FileFormatError
from octavo.program.interpret import load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import all_logits, lowered
from tests.tiny import VOCAB, dense_logits, read_tensors, stacked_experts, write_safetensors, write_tiny
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, write

F32 = NDArray[np.float32]
IDS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 40)]
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def to_gguf(directory: Path, arch: str, target: Path, *, apart: bool = False) -> Path:
    """What llama.cpp's converter would write of a tiny sparse model (float32); `apart`: as it did in 2023."""
    config = json.loads((directory / "config.json").read_text())
    metadata = {key.replace("llama.", f"{arch}."): value for key, value in LLAMA.items()}
    metadata |= {
        "general.architecture": arch,
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.expert_count": config.get("num_experts") or config["num_local_experts"],
        f"{arch}.expert_used_count": config["num_experts_per_tok"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.rope.freq_base": config["rope_theta"],
    }
    if "moe_intermediate_size" in config:
        metadata[f"{arch}.expert_feed_forward_length"] = config["moe_intermediate_size"]
    if "head_dim" in config:
        metadata[f"{arch}.attention.key_length"] = metadata[f"{arch}.attention.value_length"] = config["head_dim"]
    entries = []
    tensors = read_tensors(directory)
    for name, value in (tensors if apart else stacked_experts(tensors)).items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            number, _, part = stem.removeprefix("model.layers.").partition(".")
            pieces = part.split(".")
            expert = pieces.pop(2) if len(pieces) == 4 else None
            stored = f"blk.{number}.{LAYER['.'.join(pieces)]}"
            if expert is not None:
                stored = f"{stored.removesuffix('_exps')}.{expert}"
            if arch == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):  # pairs become neighbours
                heads = config["num_attention_heads" if ".q_" in part else "num_key_value_heads"]
                rows = value.reshape(heads, 2, -1, value.shape[-1])
                value = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)
        else:
            stored = TOP[stem]
        entries.append((f"{stored}.weight", value.shape, 0, value.tobytes()))
    return write(target, gguf_bytes(metadata, entries))


@pytest.mark.parametrize(
    ("variant", "arch", "apart"),
    [("mixtral", "llama", False), ("mixtral", "llama", True), ("qwen3-moe", "qwen3moe", False)],
)
def test_gguf_of_a_sparse_model_is_its_directory(tmp_path: Path, variant: str, arch: str, apart: bool) -> None:
    directory = write_tiny(tmp_path / "hf", variant, tokenizer=False)
    checkpoint = open_checkpoint(to_gguf(directory, arch, tmp_path / "m.gguf", apart=apart))
    want = open_checkpoint(directory)
    assert checkpoint.tensors.keys() == want.tensors.keys()
    for name, tensor in want.tensors.items():
        assert checkpoint.tensors[name].shape == tensor.shape
        assert (checkpoint.tensors[name].read() == tensor.read()).all(), name
    spec = lowered(checkpoint)
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=16)
    truth = dense_logits(directory, IDS)
    assert np.abs(got - truth).max() < 2e-4 * np.abs(truth).max()


def test_a_directory_that_stores_experts_together(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, "qwen3-moe", tokenizer=False)
    one_by_one = open_checkpoint(directory)
    want = {name: tensor.read().copy() for name, tensor in one_by_one.tensors.items()}
    fused: dict[str, F32] = {}
    for name, value in stacked_experts(read_tensors(directory)).items():
        prefix, _, last = name.removesuffix(".weight").rpartition(".")
        if value.ndim < 3:
            fused[name] = value
        elif last == "down_proj":
            fused[f"{prefix}.down_proj"] = value
        elif last == "gate_proj":
            up = stacked_experts(read_tensors(directory))[f"{prefix}.up_proj.weight"]
            fused[f"{prefix}.gate_up_proj"] = np.concatenate([value, up], axis=1)
    write_safetensors(directory / "model.safetensors", fused)
    together = open_checkpoint(directory)
    assert together.tensors.keys() == want.keys()
    for name, raw in want.items():
        assert together.tensors[name].nbytes == raw.nbytes
        assert (together.tensors[name].read() == raw).all(), name


def test_what_cannot_be_cut_is_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    directory = write_tiny(tmp_path, "llama", tokenizer=False)
    tensors = read_tensors(directory)
    write_safetensors(directory / "model.safetensors", {**tensors, name: np.zeros((2, 3, 4), np.float32)})
    with pytest.raises(FileFormatError, match=name.replace(".", r"\.")):
        open_checkpoint(directory)
