"""Checkpoints of Hugging Face directories: config, tensors, shards, what families take where a key is left out."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import FileFormatError, ModelError
from octavo.weights.checkpoint import SOURCES, open_checkpoint
from tests.recorded_defaults import RECORDED, SIZES
from tests.unit.weights.gguf_maker import write

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "eos_token_id": 2,
    "auto_map": {"AutoModel": "evil.Model"},
}


def safetensors_bytes(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _directory(path: Path, config: dict[str, Any] | None = None, **files: bytes) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    names = {"weights": "model.safetensors", "pickled": "pytorch_model.bin"}
    for name, data in files.items():
        (path / names.get(name, name)).write_bytes(data)
    return path


ONE = {
    "model.embed_tokens.weight": ("BF16", [10, 8], bytes(range(160))),
    "x.rotary_emb.inv_freq": ("F32", [1], bytes(4)),
}


def test_directory(tmp_path: Path) -> None:
    path = _directory(tmp_path / "model", weights=safetensors_bytes(ONE))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "temperature": 0.6}))
    (path / "chat_template.jinja").write_text("hello")
    (path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["head_dim"] == 4 and checkpoint.config["num_key_value_heads"] == 2
    assert checkpoint.config["eos_token_id"] == [2, 7] and checkpoint.generation_config["temperature"] == 0.6
    assert checkpoint.config["rope_scaling"] is None and checkpoint.config["rope_theta"] == 10000.0
    assert checkpoint.chat_template == "hello"
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "added_tokens_decoder": {"9": {"content": "<|im_end|>"}}})
    )
    assert open_checkpoint(path).config["eos_token_id"] == [2, 7, 9], "and the tokenizer's own ends turns too"
    assert list(checkpoint.tensors) == ["model.embed_tokens.weight"]
    tensor = checkpoint.tensors["model.embed_tokens.weight"]
    assert (tensor.source, tensor.shape) == ("bf16", (10, 8)) and tensor.source in SOURCES
    assert tensor.read().tobytes() == bytes(range(160))
    assert not (tmp_path / "ran").exists(), "code of the repository ran (S05)"


def test_rope_of_old_and_new_configs(tmp_path: Path) -> None:
    new = {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}}
    old = {"rope_scaling": {"type": "llama3", "factor": 8.0}, "rope_theta": 5e5}
    for config in (new, old):
        got = open_checkpoint(_directory(tmp_path / "m", config, weights=safetensors_bytes(ONE))).config
        assert got["rope_theta"] == 5e5 and got["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}


def test_older_rope_keys_go_before_newer_ones(tmp_path: Path) -> None:
    """As in transformers, down to the places of theta and of the trained length."""
    from octavo.models.positions import rope

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    both = {"rope_parameters": {**yarn, "rope_theta": 7.0}, "rope_theta": 500.0}

    def opened(**more: Any) -> dict[str, Any]:
        return open_checkpoint(_directory(tmp_path / "m", {**both, **more}, weights=safetensors_bytes(ONE))).config

    config = opened(rope_scaling={"type": "linear", "factor": 2.0})
    assert config["rope_theta"] == 500.0 and config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert rope(config, 16) == rope({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, 16)
    assert rope(opened(rope_scaling={"type": "default"}), 16).scaling is None
    config = opened()
    assert config["rope_theta"] == 7.0 and config["rope_scaling"] == yarn
    for original, more in ((128, {}), (64, {"original_max_position_embeddings": 64})):
        scaling: Any = rope(opened(**more), 16).scaling
        assert scaling.original_len == original


def test_what_a_config_leaves_out_is_its_familys(tmp_path: Path) -> None:
    window = {"sliding_window": 16, "num_key_value_heads": None}
    for family, positions, used in (("qwen2", 32768, None), ("mistral", 131072, 16), ("llama", 2048, None)):
        path = _directory(tmp_path / family, {"model_type": family, **window}, weights=safetensors_bytes(ONE))
        config = open_checkpoint(path).config
        assert (config["max_position_embeddings"], config["sliding_window"]) == (positions, used)
        assert config["num_key_value_heads"] == 2


def test_keys_that_mean_nothing_to_a_family_are_named(tmp_path: Path) -> None:
    """transformers' Llama has no window, whatever its config says; Mistral has."""
    window = {"sliding_window": 16, "layer_types": ["sliding_attention"]}
    llama = open_checkpoint(_directory(tmp_path / "l", window, weights=safetensors_bytes(ONE)))
    assert llama.config["sliding_window"] is None and "layer_types" not in llama.config
    assert [note.partition(" not used")[0] for note in llama.notes] == [f"config.json: {key}" for key in window]
    mistral = _directory(tmp_path / "m", {**window, "model_type": "mistral"}, weights=safetensors_bytes(ONE))
    assert open_checkpoint(mistral).config["sliding_window"] == 16 and not open_checkpoint(mistral).notes
    null = _directory(tmp_path / "n", {"sliding_window": None}, weights=safetensors_bytes(ONE))
    assert not open_checkpoint(null).notes


@pytest.mark.parametrize(
    ("head", "tied"),
    [
        (None, True),
        (("BF16", [10, 8], bytes(range(160))), True),
        (("BF16", [10, 8], bytes(range(159)) + b"x"), False),
        (("BF16", [9, 8], bytes(range(144))), False),  # refused with all else that has another shape
        (("F16", [10, 8], bytes(range(160))), False),
    ],
)
def test_a_head_that_differs_from_the_embedding_is_not_tied(tmp_path: Path, head: Any, tied: bool) -> None:
    tensors = {**ONE, **({"lm_head.weight": head} if head else {})}
    path = _directory(tmp_path / "m", {"tie_word_embeddings": True}, weights=safetensors_bytes(tensors))
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert ("lm_head.weight differs from the embedding" in " ".join(checkpoint.notes)) is not tied


@pytest.mark.parametrize("model_type", RECORDED)
def test_keys_left_out_mean_what_transformers_takes(tmp_path: Path, model_type: str) -> None:
    bare = {"model_type": model_type, **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(bare))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(ONE))
    config = open_checkpoint(tmp_path).config
    for key in {key for row in RECORDED.values() for key in row}:
        assert config.get(key) == RECORDED[model_type].get(key), key


def test_null_is_no_window_and_no_cap(tmp_path: Path) -> None:
    for family, keys in (("mistral", ["sliding_window"]), ("gemma2", ["attn_logit_softcapping", "sliding_window"])):
        null = {"model_type": family, **dict.fromkeys(keys)}
        config = open_checkpoint(_directory(tmp_path / family, null, weights=safetensors_bytes(ONE))).config
        assert [config[key] for key in keys] == [None] * len(keys)


def test_the_longrope_of_early_phi3_files(tmp_path: Path) -> None:
    """They call it "su" or "yarn", and say the trained length outside of it or not at all."""
    from octavo.models.positions import rope

    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    for kind in ("su", "yarn", "longrope"):
        config = {"model_type": "phi3", "max_position_embeddings": 131072, "rope_scaling": {"type": kind, **factors}}
        path = _directory(tmp_path / "m", config, weights=safetensors_bytes(ONE))
        scaling: Any = rope(open_checkpoint(path).config, 16).scaling
        assert (scaling.original_len, scaling.long) == (4096, (2.0,) * 8)
        assert scaling.attention == pytest.approx((1 + np.log(32) / np.log(4096)) ** 0.5)


def test_template_in_tokenizer_config(tmp_path: Path) -> None:
    path = _directory(tmp_path / "m", weights=safetensors_bytes(ONE))
    for template in ("T", [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]):
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        assert open_checkpoint(path).chat_template == "T"


def test_shards(tmp_path: Path) -> None:
    path = _directory(tmp_path / "m")
    weight_map = {"a.weight": "s-1.safetensors", "b.weight": "s-2.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (path / "s-1.safetensors").write_bytes(safetensors_bytes({"a.weight": ("F32", [2], bytes(8))}))
    with pytest.raises(ModelError, match=r"shard s-2\.safetensors is missing"):
        open_checkpoint(path)
    (path / "s-2.safetensors").write_bytes(safetensors_bytes({"c.weight": ("F32", [2], bytes(8))}))
    with pytest.raises(ModelError, match=r"1 tensors are in the index and in no shard: b\.weight"):
        open_checkpoint(path)
    (path / "s-2.safetensors").write_bytes(safetensors_bytes({"b.weight": ("F16", [2], bytes(4))}))
    assert set(open_checkpoint(path).tensors) == {"a.weight", "b.weight"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": "../s-1.safetensors"}}))
    with pytest.raises(FileFormatError, match="plain names"):
        open_checkpoint(path)


def test_directories_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"config\.json or exactly one \.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="pickled weights"):
        open_checkpoint(_directory(tmp_path / "bin", pickled=b"cos\nsystem\n(S'touch ran'\ntR."))
    with pytest.raises(ModelError, match="pickled weights"):
        open_checkpoint(write(tmp_path / "x.bin", b""))
    with pytest.raises(ModelError, match="no safetensors file"):
        open_checkpoint(_directory(tmp_path / "none"))
    eight = {"w": ("I64", [1], bytes(8))}
    with pytest.raises(ModelError, match=r"I64 \(1 tensors\) not supported here"):
        open_checkpoint(_directory(tmp_path / "int", weights=safetensors_bytes(eight)))
    for config, says in (
        ({"model_type": None}, "model_type"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
    ):
        with pytest.raises(ModelError, match=says):
            open_checkpoint(_directory(tmp_path / "bad", config, weights=safetensors_bytes(ONE)))
    (tmp_path / "bad" / "config.json").write_text("[" * 100_000)
    with pytest.raises(FileFormatError, match=r"config\.json"):
        open_checkpoint(tmp_path / "bad")
