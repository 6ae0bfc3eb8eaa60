"""Checkpoints of GGUF files: the names, shapes and numbers that directories have, from GGUF's own."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import FileFormatError, ModelError
from octavo.weights.checkpoint import open_checkpoint
from tests.models_at_hand import smollm2
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors, write


def test_smollm2() -> None:
    checkpoint = open_checkpoint(smollm2())
    want = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "intermediate_size": 1536,
        "rope_theta": 1e5,
        "rope_scaling": None,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": [0, 2],
    }
    assert {key: checkpoint.config[key] for key in want} == want
    assert checkpoint.config["rms_norm_eps"] == pytest.approx(1e-5)
    assert len(checkpoint.tensors) == 272
    assert checkpoint.tensors["model.embed_tokens.weight"].source == "q8_0"
    assert all(t.nbytes == t.read().size and t.name == name for name, t in checkpoint.tensors.items())
    assert checkpoint.chat_template and "<|im_start|>" in checkpoint.chat_template
    assert len(checkpoint.content_id) == 32 and checkpoint.content_id == open_checkpoint(smollm2()).content_id


def test_quantised_rows_are_unpermuted_whole(gguf_reader: Any) -> None:
    import gguf

    checkpoint = open_checkpoint(smollm2())
    stored = {tensor.name: tensor for tensor in gguf_reader.tensors}
    for letter, heads in (("q", 9), ("k", 3), ("v", 0)):
        tensor = stored[f"blk.7.attn_{letter}.weight"]
        want = gguf.dequantize(tensor.data, tensor.tensor_type)
        if heads:
            want = want.reshape(heads, want.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(want.shape)
        mine = checkpoint.tensors[f"model.layers.7.self_attn.{letter}_proj.weight"]
        assert mine.shape == want.shape
        got = gguf.dequantize(mine.read().reshape(mine.shape[0], -1), tensor.tensor_type)
        np.testing.assert_array_equal(got, want)


def _made(tmp_path: Path, metadata: dict[str, Any] | None = None, **more: Any) -> Path:
    data = gguf_bytes({**LLAMA, **(metadata or {})}, more.pop("tensors", llama_tensors()), **more)
    return write(tmp_path / "m.gguf", data)


def test_llama_rows_move_and_qwen2_rows_do_not(tmp_path: Path) -> None:
    rows = struct.pack("<4096f", *(float(i // 64) for i in range(4096)))  # row r holds r
    tensors = llama_tensors({"blk.0.attn_q.weight": rows})
    checkpoint = open_checkpoint(_made(tmp_path, tensors=tensors))
    got = checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"].read().view("<f4").reshape(64, 64)[:, 0]
    assert got[:16].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    qwen = {key.replace("llama.", "qwen2."): value for key, value in LLAMA.items()}
    bias = ("blk.0.attn_q.bias", (64,), 0, struct.pack("<64f", *range(64)))
    path = write(tmp_path / "q.gguf", gguf_bytes({**qwen, "general.architecture": "qwen2"}, [*tensors, bias]))
    checkpoint = open_checkpoint(path)
    got = checkpoint.tensors["model.layers.0.self_attn.q_proj.weight"].read().view("<f4").reshape(64, 64)[:, 0]
    assert got.tolist() == list(range(64))
    assert checkpoint.config["attention_bias"] is True and checkpoint.config["model_type"] == "qwen2"
    bias_bytes = checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"].read()
    assert bias_bytes.view("<f4").tolist() == list(range(64))


def test_every_control_token_that_ends_a_turn_is_eos(tmp_path: Path) -> None:
    assert open_checkpoint(_made(tmp_path)).config["eos_token_id"] == [0, 4]
    named = {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 3}
    checkpoint = open_checkpoint(_made(tmp_path, named))
    assert checkpoint.config["eos_token_id"] == checkpoint.tokenizer_spec["eos_ids"] == [0, 2, 3, 4]


def test_llama3_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    head_dim, theta, factor = 16, 5000.0, 32.0
    factors = []
    for i in range(head_dim // 2):
        wave = 2 * np.pi * theta ** (2 * i / head_dim)
        smooth = min(max((8192 / wave - 1) / 3, 0), 1)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    if max(factors) < factor:  # the test's frequencies must reach the fully scaled band
        theta = 500_000.0
        factors = []
        for i in range(head_dim // 2):
            smooth = min(max((8192 / (2 * np.pi * theta ** (2 * i / head_dim)) - 1) / 3, 0), 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    freqs = ("rope_freqs.weight", (8,), 0, struct.pack("<8f", *factors))
    path = _made(tmp_path, {"llama.rope.freq_base": theta}, tensors=[*llama_tensors(), freqs])
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in checkpoint.tensors
    odd = ("rope_freqs.weight", (8,), 0, struct.pack("<8f", *range(1, 9)))
    scaling = open_checkpoint(_made(tmp_path, tensors=[*llama_tensors(), odd])).config["rope_scaling"]
    assert scaling["long_factor"] == scaling["short_factor"] == list(range(1, 9))
    assert scaling["attention_factor"] == 1.0


def test_rope_keys_of_gguf(tmp_path: Path) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 128, "attn_factor": 0.5, "yarn_beta_fast": 16.0}
    made = _made(tmp_path, {f"llama.rope.scaling.{key}": value for key, value in yarn.items()})
    scaling = open_checkpoint(made).config["rope_scaling"]
    assert scaling == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 16.0,
        "beta_slow": None,
        "attention_factor": pytest.approx(0.5 * (1 + 0.1 * np.log(4))),
    }
    whole = {**yarn, "yarn_attn_factor": 0.75, "yarn_ext_factor": 1.0}
    del whole["attn_factor"]
    made = _made(tmp_path, {f"llama.rope.scaling.{key}": value for key, value in whole.items()})
    assert open_checkpoint(made).config["rope_scaling"]["attention_factor"] == 0.75
    for agreeing in (1.0, 0.5 * (1 + 0.1 * np.log(4))):
        both = {f"llama.rope.scaling.{key}": value for key, value in {**yarn, "yarn_attn_factor": agreeing}.items()}
        assert open_checkpoint(_made(tmp_path, both)).config["rope_scaling"] == scaling
    partial = open_checkpoint(_made(tmp_path, {"llama.rope.dimension_count": 12})).config
    assert partial["partial_rotary_factor"] == 0.75 and partial["rope_scaling"] is None
    short = ("rope_factors_short.weight", (8,), 0, struct.pack("<8f", *range(1, 9)))
    with pytest.raises(FileFormatError, match=r"rope_factors_long\.weight: got F32 \(7,\), allowed: F32 \(8,\)"):
        long = ("rope_factors_long.weight", (7,), 0, bytes(28))
        open_checkpoint(_made(tmp_path, tensors=[*llama_tensors(), short, long]))


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.factor": 1.0}, None),
        ({}, None),
    ],
)
def test_a_rope_factor_without_a_type_is_linear(
    keys: dict[str, Any], want: dict[str, Any] | None, tmp_path: Path
) -> None:
    made = _made(tmp_path, {f"llama.{key}": value for key, value in keys.items()})
    assert open_checkpoint(made).config["rope_scaling"] == want


@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_long.weight"])
def test_a_rope_factor_beside_a_table_of_factors_is_refused(name: str, tmp_path: Path) -> None:
    """llama.cpp applies both. A factor that does nothing is none."""
    tables = [(each, (8,), 0, struct.pack("<8f", *range(1, 9))) for each in (name, "rope_factors_short.weight")]
    for keys in ({}, {"factor": 0.0}, {"factor": 1.0, "type": "linear"}, {"factor": 4.0, "type": "none"}):
        made = _made(
            tmp_path, {f"llama.rope.scaling.{k}": v for k, v in keys.items()}, tensors=[*llama_tensors(), *tables]
        )
        assert open_checkpoint(made).config["rope_scaling"]["long_factor"] == list(range(1, 9))
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        with pytest.raises(FileFormatError, match=rf"rope.scaling.factor: got 4.0, allowed: .* beside .*{name}"):
            open_checkpoint(_made(tmp_path, {f"llama.{key}": 4.0}, tensors=[*llama_tensors(), *tables]))


def _as(arch: str, **more: Any) -> dict[str, Any]:
    """The maker's metadata under another architecture's name, with `more` of its keys (a dot is written __)."""
    sizes = {f"{arch}.{key[6:]}": value for key, value in LLAMA.items() if key.startswith("llama.")}
    return {
        "general.architecture": arch,
        **sizes,
        f"{arch}.attention.key_length": 16,
        **{f"{arch}.{key.replace('__', '.')}": value for key, value in more.items()},
    }


@pytest.mark.parametrize(
    ("metadata", "window", "kinds"),
    [
        (_as("llama", attention__sliding_window=16), 16, None),
        (_as("llama", attention__sliding_window=0), None, None),
        (_as("phi3", attention__sliding_window=16), 16, None),
        (_as("gemma3", attention__sliding_window=16, attention__sliding_window_pattern=[0, 1, 0]), 16, "fsf"),
        (_as("gemma3", attention__sliding_window=16, attention__sliding_window_pattern=2), 16, "sfs"),
        (_as("gemma3", attention__sliding_window_pattern=2), None, None),
        (_as("gemma2"), 4096, None),
        (_as("qwen2", attention__sliding_window=512), None, None),
        (_as("qwen2", attention__sliding_window=16, attention__sliding_window_pattern=[0, 1, 1]), 16, "fss"),
    ],
)
def test_windows_of_gguf(tmp_path: Path, metadata: dict[str, Any], window: int | None, kinds: str | None) -> None:
    """A window is for the layers that the file or the family says; one as long as the context means nothing."""
    from octavo.models.registry import build_program

    arch = metadata["general.architecture"]
    made = _made(tmp_path, {**metadata, f"{arch}.block_count": 3}, tensors=[])
    config = open_checkpoint(made).config
    assert config["sliding_window"] == window
    letters = {"sliding_attention": "s", "full_attention": "f"}
    assert "".join(letters[kind] for kind in config.get("layer_types") or []) == (kinds or "")
    windows = {group.window for group in build_program(config).groups}
    assert windows - {None} == ({window} if window and window < 512 else set())


@pytest.mark.parametrize(
    "metadata",
    [
        _as("phi3", rope__freq_base=5e4, rope__freq_base_swa=5e4),
        _as("qwen2", rope__freq_base_swa=5e3),
        _as("llama", attention__scale=0.25),
        _as("llama", attention__key_length=12, attention__value_length=12, attention__scale=12**-0.5),
        _as("gemma2", attention__scale=0.25),
        _as("llama", rope__scaling__yarn_ext_factor=0.0, rope__scaling__attn_factor=1.0),
        _as("llama", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__yarn_ext_factor=1.0),
        _as("granite", rope__scaling__finetuned=True),
        _as("llama", rope__scaling__finetuned=False),  # Granite's switch only
        _as("llama", logit_scale=1.0, attention__causal=True, use_parallel_residual=False),
    ],
)
def test_a_default_spelt_out_changes_nothing(tmp_path: Path, metadata: dict[str, Any]) -> None:
    made = _made(tmp_path, metadata, tensors=[])
    assert open_checkpoint(made).config["model_type"] == metadata["general.architecture"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a window, but for which layers": (
        _as("qwen2", attention__sliding_window=16),
        r"qwen2.attention.sliding_window: got 16, allowed: none, or qwen2.attention.sliding_window_pattern beside it",
    ),
    "windows of too few layers": (
        _as("gemma3", attention__sliding_window=16, attention__sliding_window_pattern=[1, 1]),
        "sliding_window_pattern: got 2 values, allowed: a list of 1",
    ),
    "windows of more layers than there are": (
        _as("gemma3", block_count=2**31 - 1, attention__sliding_window=16, attention__sliding_window_pattern=6),
        "block_count: got 2147483647, allowed: at most 4096",
    ),
    "windows by a word": (_as("llama", attention__sliding_window_pattern="even"), "sliding_window_pattern: got even"),
    "a window below nothing": (_as("llama", attention__sliding_window=-1), "sliding_window: got -1"),
    "another theta for windows": (
        _as("phi3", rope__freq_base_swa=1e4),
        r"freq_base_swa: got 10000\.0, allowed: none or 5000\.0 \(this architecture is built without it\)",
    ),
    "a scale nobody reads": (
        _as("llama", attention__scale=0.5),
        r"llama.attention.scale: got 0.5, allowed: none or 0.0 or 0.25 \(this architecture is built without it\)",
    ),
    "a share of a head that is not the family's": (
        _as("gemma2", block_count=46, embedding_length=32, attention__scale=0.25),
        r"gemma2.attention.scale: got 0.25, allowed: none or 0.0 or 0.3535",
    ),
    "yarn without its blend": (
        _as("llama", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__yarn_ext_factor=0.0),
        r"yarn_ext_factor: got 0.0, allowed: none or -1.0 or 1.0 \(",
    ),
    "attention scaled, but not by yarn": (
        _as("llama", rope__scaling__type="linear", rope__scaling__factor=4.0, rope__scaling__attn_factor=0.5),
        r"llama.rope.scaling.attn_factor: got 0.5, allowed: none or 1.0 \(",
    ),
    "attention scaled in two ways": (
        _as(
            "llama",
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__attn_factor=0.5,
            rope__scaling__yarn_attn_factor=0.75,
        ),
        "yarn_attn_factor: got 0.75, allowed: 1.0 or 0.569315, which follows from llama.rope.scaling.attn_factor = 0.5",
    ),
    "ropes switched off": (
        _as("granite", rope__scaling__finetuned=False),
        r"granite.rope.scaling.finetuned: got False, allowed: none or True \(this architecture is built with positions",
    ),
    "architecture": ({"general.architecture": "llama4x"}, r"'llama4x', allowed: .*llama, .*; did you mean llama\?"),
    "experts": ({"general.architecture": "qwen2", "qwen2.expert_count": 8}, "'qwen2' with experts"),
    "split": ({"split.count": 3}, "one part of a GGUF file split in 3"),
    "heads": ({"llama.attention.head_count": 0}, "head_count"),
    "layers": ({"llama.block_count": "many"}, "block_count"),
    "layers negative": ({"llama.block_count": -1}, "block_count"),
    "value length": ({"llama.attention.key_length": 16, "llama.attention.value_length": 8}, "value_length"),
    "theta": ({"llama.rope.freq_base": float("nan")}, "finite"),
    "rope factor": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 1.0, "llama.rope.scale_linear": -2.0},
        "rope.scaling.factor: got -2.0, allowed: a number from 0 on",
    ),
    "too few layers": ({"llama.block_count": 0}, "block_count"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, tmp_path: Path) -> None:
    metadata, says = REFUSED[case]
    with pytest.raises(ModelError, match=says):
        open_checkpoint(_made(tmp_path, metadata))


def test_unsupported_types_are_named(tmp_path: Path) -> None:
    block = ("blk.0.ffn_up.weight", (96, 256), 16, bytes(96 * 66))
    tensors = [t for t in llama_tensors() if t[0] != "blk.0.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"tensor type IQ2_XXS \(1 tensors\) not supported yet: allowed F32"):
        open_checkpoint(_made(tmp_path, tensors=[*tensors, block]))
