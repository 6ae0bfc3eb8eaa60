"""Models with a text model inside: what is served of them is that model, to the bit."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.args import EngineArgs
from octavo.engine.build import read_front
from octavo.errors import ModelError
from octavo.models.registry import build_program
from octavo.program.interpret import load_weights
from octavo.runner.loader import load_runner
from octavo.runner.opened import open_model
from octavo.weights.composite import COMPOSITES
from tests.models.golden import FILE, write_golden
from tests.models.harness import all_logits, lowered
from tests.quantized_maker import write_quantized
from tests.tiny import read_tensors, write_composite, write_safetensors, write_tiny

GEMMA = "Gemma3ForConditionalGeneration"
MISTRAL = "Mistral3ForConditionalGeneration"
IDS = [int(i) for i in np.random.default_rng(5).integers(0, 300, 60)]
GEMMA_4B: dict[str, Any] = {
    "architectures": [GEMMA],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "num_hidden_layers": 27},
}
"""As it is published: most of the text model is left to the class."""


def _plain(path: Path, architecture: str) -> Path:
    if architecture == MISTRAL:
        return write_tiny(path, "mistral", tokenizer=False)
    return write_golden(path, json.loads(FILE.read_text())["gemma3"]["config"])


def _logits(path: Path) -> np.ndarray[Any, Any]:
    checkpoint = open_model(path)
    spec = lowered(checkpoint)
    return all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=17)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("architecture", COMPOSITES)
def test_the_logits_are_those_of_the_text_model_alone(tmp_path: Path, architecture: str, newer: bool) -> None:
    plain = _plain(tmp_path / "plain", architecture)
    kind = COMPOSITES[architecture].model_type
    whole = write_composite(tmp_path / "whole", plain, architecture, kind, newer=newer)
    np.testing.assert_array_equal(_logits(whole), _logits(plain))
    assert open_model(whole).notes == (
        "only the text model is served: vision_tower, multi_modal_projector left out, 3 tensors, 0.0 MB",
    )
    assert open_model(whole).config["eos_token_id"] == open_model(plain).config["eos_token_id"]
    assert open_model(plain).notes == ()


def test_quantised_parts_go_by_the_names_of_the_whole(tmp_path: Path) -> None:
    """A quantization_config names modules as they are stored, not as the text model alone would."""
    plain, whole = write_quantized(tmp_path, "ct-w8a8").directory, tmp_path / "whole"
    whole.mkdir()
    raw = (plain / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = {f"language_model.{name}": entry for name, entry in json.loads(raw[8 : 8 + length]).items()}
    text = json.dumps(header).encode()
    (whole / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    config = json.loads((plain / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (plain / "config.json").write_text(json.dumps(config))
    stored = config.pop("quantization_config")
    stored["config_groups"]["group_0"]["targets"] = [r"re:language_model\.model\..*_proj"]
    stored["ignore"] = ["language_model.lm_head"]
    outer = {"architectures": [MISTRAL], "model_type": "mistral3", "text_config": config}
    (whole / "config.json").write_text(json.dumps({**outer, "quantization_config": stored}))
    np.testing.assert_array_equal(_logits(whole), _logits(plain))


def test_it_is_served_and_the_log_says_what_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_composite(tmp_path / "w", _plain(tmp_path / "p", GEMMA), GEMMA, "gemma3", newer=False)
    with caplog.at_level("INFO"):
        runner = load_runner(EngineArgs(model=str(whole), executor="reference", max_model_len=64, max_num_seqs=2))
    assert runner.facts.architecture == "Gemma3ForCausalLM"
    assert "vision_tower, multi_modal_projector left out, 3 tensors" in caplog.text
    assert read_front(EngineArgs(model=str(whole))).name


def test_a_published_config_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_4B))
    write_safetensors(tmp_path / "model.safetensors", {"language_model.model.norm.weight": np.ones(2560, np.float32)})
    checkpoint = open_model(tmp_path)
    assert list(checkpoint.tensors) == ["model.norm.weight"]
    config = checkpoint.config
    keys = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")
    assert [config[key] for key in keys] == [8, 4, 256, 262208, 131072]
    assert config["eos_token_id"] == [1, 106]
    windows = {group.name: (group.layers, group.window) for group in build_program(config).groups}
    assert sum(layers for layers, _ in windows.values()) == 34
    assert {window for _, window in windows.values()} == {None, 1024}


@pytest.mark.parametrize(
    ("whole", "text", "stored", "want"),
    [
        (True, False, False, True),  # as transformers 5 writes Mistral 3
        (True, False, True, False),
        (False, True, True, False),
        (False, True, False, True),
        (None, False, True, False),
        (None, True, False, True),
        (None, None, True, False),  # as Mistral 3 is published
    ],
)
def test_tied_or_not(tmp_path: Path, whole: bool | None, text: bool | None, stored: bool, want: bool) -> None:
    path = write_composite(tmp_path / "w", _plain(tmp_path / "p", MISTRAL), MISTRAL, "mistral3", newer=False)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = text
    (path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": whole}))
    tensors = {name: value for name, value in read_tensors(path).items() if stored or "lm_head" not in name}
    write_safetensors(path / "model.safetensors", tensors)
    assert open_model(path).config["tie_word_embeddings"] is want
    assert np.isfinite(_logits(path)).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text_config": None}, "text_config: got NoneType, allowed: an object"),
        ({"text_config": {"model_type": "ministral3"}}, "text_config.model_type: got 'ministral3', allowed: 'mistral'"),
        ({"architectures": ["Mistral3ForConditionalGen"]}, f"did you mean {MISTRAL}?"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    whole = write_composite(tmp_path / "w", _plain(tmp_path / "p", MISTRAL), MISTRAL, "mistral3", newer=True)
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError) as caught:
        open_model(whole)
    assert str(whole / "config.json") in str(caught.value)
    assert says in str(caught.value)


def test_by_model_type_and_not_twice(tmp_path: Path) -> None:
    whole = write_composite(tmp_path / "w", _plain(tmp_path / "p", MISTRAL), MISTRAL, "mistral3", newer=True)
    config = json.loads((whole / "config.json").read_text())
    del config["architectures"]
    (whole / "config.json").write_text(json.dumps(config))
    assert open_model(whole).config["architectures"] == ["MistralForCausalLM"]
    both = {**read_tensors(whole), "language_model.model.norm.weight": np.ones(64, np.float32)}
    write_safetensors(whole / "model.safetensors", both)
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight: got it twice"):
        open_model(whole)
