"""Files whose tensors are not those of their config: one refusal, on the way of serving, that names every one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.config.args import EngineArgs
from octavo.errors import ModelError, every
from octavo.runner.loader import load_runner
from tests.quantized_maker import read_any, write_any, write_quantized
from tests.tiny import read_tensors, write_safetensors, write_tiny
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors, write


def _refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_runner(EngineArgs(model=str(path)))
    return str(caught.value)


def test_a_directory(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama", tokenizer=False, num_hidden_layers=12)
    tensors = {name: value for name, value in read_tensors(path).items() if ".mlp.up_proj." not in name}
    for layer in range(1, 12):
        tensors[f"model.layers.{layer}.self_attn.q_proj.weight"] = np.zeros((60, 64), np.float32)
    tensors["model.norm.weight"] = np.zeros(63, np.float32)
    for layer in range(10):
        tensors[f"vision.layers.{layer}.conv.weight"] = np.zeros((2, 3, 4), np.float32)
    tensors["visual.proj.weight"] = np.zeros((2, 2), np.float32)
    write_safetensors(path / "model.safetensors", tensors)
    said = _refusal(path)
    for words in (
        "12 missing: model.layers.0-11.mlp.up_proj.weight;",
        "12 of another shape or type: model.layers.1-11.self_attn.q_proj.weight (got shape (60, 64), allowed: (64, 64)",
        "model.norm.weight (got shape (63,), allowed: (64,)",
        "11 not of this model: vision.layers.0-9.conv.weight, visual.proj.weight",
    ):
        assert words in said


def test_a_quantised_directory(tmp_path: Path) -> None:
    """Parts of quantised matrices are said with the rest: those alike together, by their matrix's name."""
    path = write_quantized(tmp_path, "awq").directory
    tensors = read_any(path / "model.safetensors")
    for layer in range(3):
        del tensors[f"model.layers.{layer}.self_attn.k_proj.scales"]
    tensors["model.layers.2.mlp.up_proj.qzeros"] = ("I32", np.ones((2, 11)))
    del tensors["model.layers.1.mlp.down_proj.qweight"], tensors["model.norm.weight"]
    tensors["extra.weight"] = ("F32", np.zeros(3))
    write_any(path / "model.safetensors", tensors)
    said = _refusal(path)
    for words in (
        "2 missing: model.layers.1.mlp.down_proj.weight, model.norm.weight",
        "4 damaged: model.layers.0-2.self_attn.k_proj.weight (scales: got none, allowed: one beside qweight), ",
        "model.layers.2.mlp.up_proj.weight (qzeros: got shape [2, 11], allowed: [2, 12])",
        "1 not of this model: extra.weight",
    ):
        assert words in said


def test_an_index_of_tensors_that_are_in_no_shard(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama", tokenizer=False, shards=2)
    shard = path / "model-00001-of-00002.safetensors"
    index = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    gone = [name for name, file in index.items() if file == shard.name and name != "model.embed_tokens.weight"]
    kept = read_tensors(path)
    write_safetensors(shard, {n: kept[n] for n, file in index.items() if file == shard.name and n not in gone})
    assert len(gone) > 8
    assert f"{len(gone)} tensors are in the index and in no shard: {every(gone)}" in _refusal(path)


def test_a_gguf_file(tmp_path: Path) -> None:
    shapes = {name: tuple(shape) for name, shape, _, _ in llama_tensors()}
    del shapes["blk.0.ffn_up.weight"], shapes["token_embd.weight"]
    shapes["blk.0.attn_q.weight"] = (60, 64)
    shapes["blk.0.ffn_down.weight"] = (64, 95)
    shapes |= {"blk.0.ssm_a": (4,), "blk.0.conv.weight": (2, 3, 4), "model.embed_tokens.weight": (5, 64)}
    tensors = [(name, shape, 0, bytes(4 * int(np.prod(shape)))) for name, shape in shapes.items()]
    said = _refusal(write(tmp_path / "m.gguf", gguf_bytes(LLAMA, tensors)))
    for words in (
        "2 missing: model.embed_tokens.weight, model.layers.0.mlp.up_proj.weight",
        "2 of another shape or type",
        "model.layers.0.self_attn.q_proj.weight (got shape (60, 64), allowed: (64, 64)",
        "model.layers.0.mlp.down_proj.weight (got shape (64, 95), allowed: (64, 96)",
        "3 not of this model: blk.0.conv.weight (as stored), blk.0.ssm_a (as stored), model.embed_tokens.weight (as s",
    ):
        assert words in said
