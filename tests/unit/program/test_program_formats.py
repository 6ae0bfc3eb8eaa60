"""Which checkpoint type becomes which execution format, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ConfigError, ModelError
from octavo.models.registry import build_program
from octavo.program.formats import choose_formats
from octavo.quant.table import Wishes, choose
from tests.models.harness import MemoryTensor, TinyCheckpoint, lowered
from tests.tiny import write_tiny


@pytest.mark.parametrize(
    ("sources", "auto", "bfloat16", "int8", "int4"),
    [
        (["f32"], "f32", "bf16", "int8", "int4m"),
        (["f16"], "f32", "bf16", "int8", "int4m"),
        (["bf16"], "bf16", "bf16", "int8", "int4m"),
        (["q8_0"], "int8", "int8", "int8", "int8"),
        (["q4_0"], "int4", "int4", "int4", "int4"),
        (["q4_1"], "int4m", "int4m", "int4m", "int4m"),
        *[
            ([source], *[fmt] * 4)
            for source, fmt in [
                ("q5_0", "int5"),
                ("q5_1", "int5m"),
                ("q2_k", "int2k"),
                ("q3_k", "int3k"),
                ("q4_k", "int4k"),
                ("q5_k", "int5k"),
                ("q6_k", "int6k"),
                ("iq4_nl", "int4n"),
                ("iq4_xs", "int4x"),
                ("mxfp4", "int4e"),
                ("z4", "int4z"),
                ("s8", "int8f"),
                ("q8_0c", "int8"),
                ("s8c", "int8f"),
            ]
        ],
        (["q8_0c", "s8c"], "int8f", "int8f", "int8f", "int8f"),
        (["q4_k", "q5_k"], "int5k", "int5k", "int5k", "int5k"),
        (["q4_k", "q6_k"], "f32", "f32", "f32", "f32"),
        (["q4_0", "q8_0"], "int8", "int8", "int8", "int8"),
        (["iq4_nl", "q8_0"], "int8", "int8", "int8", "int8"),
        (["iq4_xs", "iq4_nl"], "int8f", "int8f", "int8f", "int8f"),
        (["q4_1", "q8_0"], "f32", "f32", "f32", "f32"),
        (["bf16", "f32"], "f32", "bf16", "int8", "int4m"),
        (["q8_0", "bf16"], "f32", "f32", "f32", "f32"),
    ],
)
def test_choices(sources: list[str], auto: str, bfloat16: str, int8: str, int4: str) -> None:
    assert choose(sources, Wishes()).format == auto
    assert choose(sources, Wishes(quantization="none")).format == auto
    assert choose(sources, Wishes(dtype="bfloat16")).format == bfloat16
    assert choose(sources, Wishes(quantization="int8")).format == int8
    assert choose(sources, Wishes(quantization="int4")).format == int4
    by_token = {source[-1] for source in sources} == {"c"}
    assert choose(sources, Wishes(quantization="compressed-tensors")).format == ("int8t" if by_token else auto)
    assert choose(sources, Wishes(dtype="float32")).format == "f32"


def test_an_embedding_is_never_cut_to_four_bits() -> None:
    assert choose(["bf16"], Wishes(quantization="int4"), eight=True).format == "int8"


def test_int4_leaves_eight_bits_where_rounding_costs_most(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    program = build_program(checkpoint.config)
    formats = choose_formats(program, checkpoint.tensors, Wishes(quantization="int4")).by_weight
    four = {name.rpartition("layers.")[2] for name, form in formats.items() if form == "int4m"}
    assert four == {"0.mlp.(gate_proj+up_proj).weight"}
    assert set(formats.values()) == {"int4m", "int8"}


def test_wishes_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match="float32"):
        Wishes(dtype="float32", quantization="int8")
    with pytest.raises(ConfigError, match="allowed: auto, float32, bfloat16"):
        Wishes(dtype="half")
    with pytest.raises(ConfigError, match="allowed: none, int8, int4"):
        Wishes(quantization="fp8")
    with pytest.raises(ModelError, match="got iq2_xs"):
        choose(["iq2_xs"], Wishes())


def test_log_lines_name_types_bytes_and_the_unused(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama-bf16", tokenizer=False, tie_word_embeddings=True))
    tensors = {**checkpoint.tensors, "lm_head.weight": MemoryTensor("f32", np.zeros((320, 64), np.float32))}
    lines = choose_formats(build_program(checkpoint.config), tensors, Wishes()).lines
    assert lines[0].startswith("bf16 -> bf16, kept as it is: 22 tensors")
    assert lines[-1] == "not used: lm_head.weight"


def test_all_that_differs_from_the_config_is_named_at_once(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    program = build_program(checkpoint.config)
    layer = "model.layers.1.mlp"
    tensors = {name: t for name, t in checkpoint.tensors.items() if not name.startswith(f"{layer}.up_proj")}
    for name, shape in ((f"{layer}.gate_proj.weight", (96, 65)), ("model.norm.weight", (63,))):
        tensors[name] = replace(tensors[name], values=np.zeros(shape, np.float32))
    tensors["model.layers.0.input_layernorm.weight"] = replace(tensors["model.norm.weight"], source="q8_0")
    tensors["vision_tower.weight"] = MemoryTensor("f32", np.zeros(3, np.float32))
    with pytest.raises(ModelError) as caught:
        choose_formats(program, tensors, Wishes())
    text = str(caught.value)
    for words in (
        f"1 missing: {layer}.up_proj.weight",
        "3 of another shape or type",
        f"{layer}.gate_proj.weight (got shape (96, 65), allowed: (96, 64)",
        "model.norm.weight (got shape (63,), allowed: (64,)",
        "1 not of this model: vision_tower.weight",
    ):
        assert words in text
    with pytest.raises(ModelError) as caught:
        choose_formats(program, {}, Wishes())
    text = str(caught.value)
    assert "30 missing: model.embed_tokens.weight, model.layers.0-2.input_layernorm.weight, " in text
    assert text.endswith("model.layers.0-2.mlp.down_proj.weight, model.norm.weight, lm_head.weight")


def test_quantising_what_is_quantised_is_refused(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    coded = {n: replace(t, source="q8_0") if t.values.ndim == 2 else t for n, t in checkpoint.tensors.items()}
    with pytest.raises(ConfigError, match="quantised already"):
        choose_formats(build_program(checkpoint.config), coded, Wishes(quantization="int8"))


def test_a_tied_model_holds_its_head_once(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama-tied", tokenizer=False))
    spec = lowered(checkpoint, dtype="auto", backend="native")
    wide = [w.weight.name for w in spec.weights if w.n == 320]
    assert wide == ["model.embed_tokens.weight"]
