"""Directories as they are published, of architectures that nobody here knows, on the ways that serving takes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.cli.explain import Explained, ExplainFlags
from octavo.config.args import EngineArgs
from octavo.engine.build import read_front
from octavo.errors import ModelError
from octavo.models.registry import MODELS
from octavo.runner.loader import load_runner
from octavo.runner.opened import open_model
from octavo.runner.pack_directory import pack_directory
from tests.tiny import write_tiny

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
QWEN2_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "image_token_id": 151655,
    "text_config": {"hidden_size": 1536, "model_type": "qwen2_vl_text", "num_hidden_layers": 28},
    "vision_config": {"depth": 32, "embed_dim": 1280},
    "quantization_config": {"quant_method": "of tomorrow"},
}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpt2": (GPT2, "architecture: got GPT2LMHeadModel", ""),
    "qwen2-vl": (QWEN2_VL, "architecture: got Qwen2VLForConditionalGeneration", ""),
    "misspelled": ({"architectures": ["LammaForCausalLM"]}, "got LammaForCausalLM", "did you mean LlamaForCausalLM?"),
    "type only": ({"model_type": "lama"}, "model_type: got 'lama'", "did you mean llama?"),
}
"""config.json, and what the refusal says at its start and end."""


def _write(path: Path, config: dict[str, Any]) -> Path:
    """With tensors of a type that is refused as well: the architecture is to be refused before them."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"h.0.attn.bias": {"dtype": "BOOL", "shape": [1, 4], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return path


WAYS: dict[str, Callable[[str, Path], object]] = {
    "engine": lambda model, out: load_runner(EngineArgs(model=model)),
    "front half": lambda model, out: read_front(EngineArgs(model=model)),
    "explain": lambda model, out: Explained(EngineArgs(model=model), ExplainFlags()),
    "quantize": lambda model, out: pack_directory(Path(model), out, quantization="int8"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_the_refusal_names_the_known_and_the_nearest(tmp_path: Path, case: str, way: str) -> None:
    config, start, end = CASES[case]
    path = _write(tmp_path / "model", config)
    with pytest.raises(ModelError) as caught:
        WAYS[way](str(path), tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{path / 'config.json'}: ")
    assert start in said
    assert said.endswith(end)
    assert "architectures" not in config or all(name in said for name in MODELS)


def test_python_sees_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"got GPT2LMHeadModel, allowed: .*LlamaForCausalLM"):
        LLM(str(_write(tmp_path / "gpt2", GPT2)))


@pytest.mark.parametrize("names", ["LlamaForCausalLM", [["LlamaForCausalLM"]], {"a": 1}, 5])
def test_names_that_are_no_names(tmp_path: Path, names: object) -> None:
    path = _write(tmp_path / "model", {"architectures": names})
    with pytest.raises(ModelError, match=r"config\.architectures: got .*, allowed: a list of names"):
        open_model(path)


def test_what_is_known_opens(tmp_path: Path) -> None:
    assert open_model(write_tiny(tmp_path, tokenizer=False)).config["model_type"] == "llama"
