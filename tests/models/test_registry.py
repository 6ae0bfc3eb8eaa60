"""Which configs build, and how the others are refused: what, got, allowed."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.models.registry import MODEL_TYPES, MODELS, architecture, build_program
from octavo.program.ops import Act, Attend
from tests.tiny import LLAMA3_ROPE, VARIANTS, tiny_config


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_builds(variant: str) -> None:
    family, overrides = VARIANTS[variant]
    program = build_program(tiny_config(family, **overrides))
    assert program.segments[0].name == "embed"
    assert program.segments[-1].name == "head"
    assert program.groups[0].layers == 3


def test_names_are_the_checkpoints() -> None:
    program = build_program(tiny_config("qwen2"))
    tensors = {p.tensor for w in program.weights.values() for p in w.parts}
    assert "model.layers.0.self_attn.q_proj.bias" in tensors
    assert "model.layers.0.self_attn.o_proj.bias" not in tensors
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= tensors
    assert "lm_head.weight" not in {
        p.tensor for w in build_program(tiny_config(tie_word_embeddings=True)).weights.values() for p in w.parts
    }


def test_a_window_that_is_switched_off_is_none() -> None:
    build_program(tiny_config("qwen2", sliding_window=32768, use_sliding_window=False, max_window_layers=1))
    build_program(tiny_config("qwen2", sliding_window=32768))  # its switch is off unless the config turns it on
    build_program(tiny_config("qwen2", use_sliding_window=True))  # on, but no width
    build_program(tiny_config("llama", layer_types=["full_attention"] * 3))


def test_llama_with_biases() -> None:
    program = build_program(tiny_config(attention_bias=True, mlp_bias=True))
    tensors = {p.tensor for w in program.weights.values() for p in w.parts}
    assert {"model.layers.0.self_attn.o_proj.bias", "model.layers.0.mlp.up_proj.bias"} <= tensors


def test_model_type_stands_in_for_architectures() -> None:
    for kind, name in MODEL_TYPES.items():
        config = {**tiny_config(), "model_type": kind}
        del config["architectures"]
        assert architecture(config) == name
        assert name in MODELS


@pytest.mark.parametrize(
    ("family", "overrides", "words"),
    [
        ("llama", {"architectures": ["GPT2LMHeadModel"]}, ["architecture", "GPT2LMHeadModel", "LlamaForCausalLM"]),
        ("llama", {"architectures": ["Qwen2_5ForCausalLM"]}, ["did you mean Qwen2ForCausalLM?"]),
        ("llama", {"architectures": None, "model_type": "lama"}, ["model_type", "'lama'", "did you mean llama?"]),
        ("mistral", {"sliding_window": 0}, ["sliding_window", "0", "1 to"]),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "2 of them"]),
        ("qwen2", {"layer_types": ["full_attention", "chunked", "chunked"]}, ["layer_types", "chunked"]),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, ["sliding_window", "None"]),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["rope_parameters.full_attention"]),
        ("qwen2", {"mlp_bias": True}, ["mlp_bias", "no such bias"]),
        ("llama", {"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ("llama", {"num_key_value_heads": 3}, ["num_key_value_heads", "3", "divisor"]),
        ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, ["num_attention_heads", "head_dim"]),
        ("llama", {"head_dim": 15}, ["head_dim", "15", "even"]),
        ("llama", {"rope_scaling": {"rope_type": "xpos", "factor": 4.0}}, ["rope_type", "xpos", "llama3", "yarn"]),
        ("llama", {"rope_scaling": {"type": "dynamic"}}, ["rope_parameters.factor", "None"]),
        ("llama", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, ["short_factor", "1 of them", "8"]),
        ("llama", {"rope_parameters": {**LLAMA3_ROPE, "factor": "8"}}, ["rope_parameters.factor", "'8'"]),
        ("llama", {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 5.0}}, ["low_freq_factor", "below 4.0"]),
        ("llama", {"rope_theta": -1}, ["rope_theta", "-1", "positive"]),
        ("llama", {"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5", "1"]),
        ("llama", {"hidden_size": None}, ["hidden_size", "None"]),
        ("llama", {"num_hidden_layers": 10**9}, ["num_hidden_layers", "4096"]),
        ("llama", {"vocab_size": True}, ["vocab_size", "True"]),
        ("llama", {"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"]),
        ("llama", {"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "yes", "true or false"]),
    ],
)
def test_refusals_name_what_got_allowed(family: str, overrides: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        build_program(tiny_config(family, **overrides))
    text = str(caught.value)
    assert "got" in text
    assert "allowed" in text
    for word in words:
        assert word.lower() in text.lower()


def test_gemmas_gelu_is_its_approximation() -> None:
    config = {**tiny_config(), "model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
    functions = {
        name: {op.fn for op in build_program({**config, "hidden_act": name}).ops if isinstance(op, Act)}
        for name in ("gelu", "gelu_pytorch_tanh")
    }
    assert functions == {"gelu": {"gelu_tanh"}, "gelu_pytorch_tanh": {"gelu_tanh"}}
    with pytest.raises(ModelError, match="hidden_act: got 'silu'"):
        build_program(config)


@pytest.mark.parametrize("name", ["GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_gemma_that_sees_what_follows_is_refused(name: str) -> None:
    config = tiny_config(architectures=[name], hidden_act="gelu_pytorch_tanh")
    build_program({**config, "use_bidirectional_attention": False})
    with pytest.raises(ModelError, match="use_bidirectional_attention: got True, allowed: False"):
        build_program({**config, "use_bidirectional_attention": True})


def test_both_spellings_of_rope_agree() -> None:
    old = build_program(tiny_config(rope_theta=5000.0, rope_scaling=LLAMA3_ROPE))
    new = build_program(tiny_config(rope_parameters={**LLAMA3_ROPE, "rope_theta": 5000.0}))
    tables = [w.table for w in old.weights.values() if w.kind == "table"]
    assert tables == [w.table for w in new.weights.values() if w.kind == "table"]
    assert tables[0] is not None
    assert tables[0][0].scaling is not None


@pytest.mark.parametrize(
    ("family", "overrides", "windows"),
    [
        ("mistral", {"sliding_window": 64}, [64, 64, 64]),
        ("mistral", {"sliding_window": None}, [None, None, None]),
        ("mistral", {"sliding_window": 1 << 20}, [None, None, None]),
        ("qwen2", {"sliding_window": 64}, [None, None, None]),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, [None, 64, 64]),
        ("qwen2", {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         [None, 64, None]),
    ],
)  # fmt: skip
def test_windows_of_layers(family: str, overrides: dict[str, Any], windows: list[int | None]) -> None:
    program = build_program(tiny_config(family, **overrides))
    ops = [op for op in program.ops if isinstance(op, Attend)]
    assert [program.groups[op.group].window for op in ops] == windows
