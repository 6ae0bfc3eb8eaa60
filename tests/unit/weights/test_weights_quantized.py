"""Quantised Hugging Face directories: every layout decoded exactly, every lie refused by the tensor's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.weights.checkpoint import Tensor, open_checkpoint
from tests.quantized_maker import CODES, KINDS, read_any, write_any, write_quantized
from tests.tiny import write_tiny


def numbers(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor's numbers, straight from the definition of its source."""
    n, k = tensor.shape
    raw = tensor.read()
    if tensor.source in ("f32", "bf16"):
        return np.asarray(raw.view(CODES[tensor.source.upper()]).reshape(n, k), np.float32)
    head = {"q4_0": 2, "z4": 3, "q8_0": 2, "s8": 4, "q8_0c": 2, "s8c": 4}[tensor.source]
    blocks = raw.reshape(n, k // 32, -1)
    scale = np.ascontiguousarray(blocks[:, :, :head]) if head != 3 else np.ascontiguousarray(blocks[:, :, :2])
    scale = scale.view("<f4" if head == 4 else "<f2").astype(np.float64)
    body = blocks[:, :, head:]
    if tensor.source.startswith(("q8_0", "s8")):
        return (scale * body.view(np.int8)).astype(np.float32).reshape(n, k)
    zero = 8 if tensor.source == "q4_0" else blocks[:, :, 2:3].astype(np.int64)
    codes = np.concatenate([body & 15, body >> 4], axis=2).astype(np.int64)
    return (scale * (codes - zero)).astype(np.float32).reshape(n, k)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_codes_meaning(tmp_path: Path, kind: str) -> None:
    made = write_quantized(tmp_path, kind)
    checkpoint = open_checkpoint(made.directory)
    assert len(made.matrices) == 21
    want_source = KINDS[kind][2]
    for name, want in made.matrices.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.source, tensor.shape, tensor.read().size) == (want_source, want.shape, tensor.nbytes)
        got = numbers(tensor)
        if kind == "gptq-act-order":  # a block's largest number sets the step: half of it, and the scale's rounding
            amax = np.abs(want.reshape(-1, 32)).max(axis=1)
            assert (np.abs(got - want).reshape(-1, 32).max(axis=1) <= amax / 254 * 1.13).all()
        elif tensor.source == "bf16":
            np.testing.assert_array_equal(got, want.astype(CODES["BF16"]).astype(np.float32))
        else:
            np.testing.assert_array_equal(got, want)
    assert {t.source for name, t in checkpoint.tensors.items() if name not in made.matrices} == {"f32"}
    assert len(checkpoint.notes) == 1 and "21 tensors" in checkpoint.notes[0]
    assert "quantization_config" not in checkpoint.config


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gptq-v2", {"format": "gptq_v2"}),
        ("gptq-v2", {"format": "GPTQ_V2", "checkpoint_format": "gptq_v2"}),
        ("gptq", {"format": "gptq"}),
        ("gptq", {}),
        ("awq", {"format": "gemm"}),
        ("awq", {"version": "GEMM", "format": "gemm"}),
        ("awq", {}),
    ],
)
def test_the_layout_is_named_by_either_key(tmp_path: Path, kind: str, keys: dict[str, str]) -> None:
    made = write_quantized(tmp_path, kind)
    file = made.directory / "config.json"
    settings = json.loads(file.read_text())
    stored = {k: v for k, v in settings["quantization_config"].items() if k not in ("version", "checkpoint_format")}
    file.write_text(json.dumps({**settings, "quantization_config": {**stored, **keys}}))
    for name, want in made.matrices.items():
        np.testing.assert_array_equal(numbers(open_checkpoint(made.directory).tensors[name]), want)


@pytest.mark.parametrize(
    ("kind", "changed", "source"),
    [
        ("ct-w8a8", {}, "q8_0c"),
        ("ct-w8a8", {"dynamic": False}, "q8_0"),
        ("ct-w8a8", {"strategy": "tensor"}, "q8_0"),
        ("ct-w8a8", {"strategy": "group", "group_size": 32}, "q8_0"),
        ("ct-w8a8", {"num_bits": 4}, "q8_0"),
        ("ct-w8a8", {"type": "float"}, "q8_0"),
        ("ct-w8a8", {"symmetric": False}, "q8_0"),
        ("ct-w8a8", None, "q8_0"),
        ("ct-w8a8-f32-scales", {}, "s8c"),
        ("ct-w8a8-f32-scales", None, "s8"),
        ("ct-w8a16", {}, "q8_0"),
    ],
)
def test_one_scale_a_token_where_the_scheme_says_so(
    tmp_path: Path, kind: str, changed: dict[str, Any] | None, source: str
) -> None:
    made = write_quantized(tmp_path, kind)
    file = made.directory / "config.json"
    settings = json.loads(file.read_text())
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    scheme = settings["quantization_config"]["config_groups"]["group_0"]
    scheme["input_activations"] = None if changed is None else {**inputs, **changed}
    file.write_text(json.dumps(settings))
    tensors = open_checkpoint(made.directory).tensors
    assert {tensors[name].source for name in made.matrices} == {source}
    for name, want in made.matrices.items():
        np.testing.assert_array_equal(numbers(tensors[name]), want)


def test_tiles_of_rows_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long matrices are read in tiles; none may shift or drop rows."""
    for kind in ("awq", "gptq", "gptq-act-order", "ct-w4a16-zeros", "ct-w8a8", "fp8"):
        made = write_quantized(tmp_path, kind)
        whole = {name: open_checkpoint(made.directory).tensors[name].read() for name in made.matrices}
        for size in ("coded.TILE", "coded.DENSE_TILE", "fp8.TILE"):
            monkeypatch.setattr(f"octavo.weights.quantized.{size}", 64 * 24)
        for name, data in whole.items():
            np.testing.assert_array_equal(open_checkpoint(made.directory).tensors[name].read(), data)
        monkeypatch.undo()


Edit = dict[str, Any]
LAYER = "model.layers.1.mlp.up_proj"
LIES: dict[str, tuple[str, Edit, str]] = {
    "type of codes": ("awq", {f"{LAYER}.qweight": ("I64", np.zeros((64, 12)))}, f"{LAYER}.qweight: got type I64"),
    "rank": ("gptq", {f"{LAYER}.qweight": ("I32", np.zeros(96))}, f"{LAYER}.qweight: got shape"),
    "input columns": ("awq", {f"{LAYER}.qweight": ("I32", np.zeros((48, 12)))}, "got 48 input columns"),
    "scales missing": ("gptq", {f"{LAYER}.scales": None}, f"{LAYER}.scales: got none"),
    "scales of another group": ("awq", {f"{LAYER}.scales": ("F16", np.ones((1, 96)))}, f"{LAYER}.scales: got shape"),
    "zeros of another width": ("gptq", {f"{LAYER}.qzeros": ("I32", np.ones((2, 11)))}, f"{LAYER}.qzeros: got shape"),
    "an infinite scale": ("awq", {f"{LAYER}.scales": ("F16", np.full((2, 96), np.inf))}, f"{LAYER}.scales"),
    "a group that is not there": ("gptq", {f"{LAYER}.g_idx": ("I32", np.full(64, 2))}, f"{LAYER}.g_idx: got groups"),
    "a negative group": ("gptq", {f"{LAYER}.g_idx": ("I32", np.full(64, -1))}, f"{LAYER}.g_idx: got groups"),
    "another shape": (
        "ct-w4a16",
        {f"{LAYER}.weight_shape": ("I64", np.array([96, 32]))},
        rf"{LAYER}.weight_shape: got \[96, 32\]",
    ),
    "zero points missing": ("ct-w4a16-zeros", {f"{LAYER}.weight_zero_point": None}, f"{LAYER}.weight_zero_point"),
    "a zero point past 4 bits": (
        "ct-w4a16-old-zeros",
        {f"{LAYER}.weight_zero_point": ("I8", np.full((96, 2), 8))},
        f"{LAYER}.weight_zero_point: got a zero point",
    ),
    "an ignored module": (
        "ct-w8a8",
        {"lm_head.weight": ("I8", np.zeros((320, 64))), "lm_head.weight_scale": ("F32", np.ones((320, 1)))},
        "lm_head.weight: got a quantised one",
    ),
    "no scale": ("fp8", {f"{LAYER}.weight_scale": None}, f"{LAYER}.weight_scale: got none"),
    "blocks of another size": (
        "fp8-block",
        {f"{LAYER}.weight_scale_inv": ("F32", np.ones((1, 1)))},
        f"{LAYER}.weight_scale_inv: got shape",
    ),
    "a float that is none": ("fp8", {f"{LAYER}.weight": ("F8_E4M3", np.full((96, 64), np.nan))}, f"{LAYER}.weight"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_by_name(tmp_path: Path, lie: str) -> None:
    kind, edits, says = LIES[lie]
    made = write_quantized(tmp_path, kind)
    tensors = read_any(made.directory / "model.safetensors")
    tensors = {name: value for name, value in {**tensors, **edits}.items() if value is not None}
    write_any(made.directory / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=says):
        open_checkpoint(made.directory).tensors[f"{next(iter(edits)).rpartition('.')[0]}.weight"].read()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "bitsandbytes"}, r"quant_method: got 'bitsandbytes', allowed: awq, gptq"),
        ({}, "quant_method: got None"),
        ({"quant_method": ["awq"]}, "quant_method"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "bits: got 8, allowed: 4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 16}, "group_size: got 16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version: got 'gemv'"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "format": "gemv"}, "format: got 'gemv'"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "format": "gemm", "version": "gemv_fast"},
            "version: got 'gemv_fast'",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "backend": "llm-awq"}, "backend: got 'llm-awq'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "format": "marlin"}, "format: got 'marlin'"),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "format": "gptq", "checkpoint_format": "gptq_v2"},
            "checkpoint_format: got 'gptq_v2', allowed: 'gptq', as format says",
        ),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits: got 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": True}, "group_size: got True"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}, "is_marlin_format"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
            },
            "format: got 'nvfp4-pack-quantized'",
        ),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}},
            "transform_config",
        ),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    ],
)
def test_parameters_that_are_not_read_are_refused(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    directory = write_tiny(tmp_path, "llama", tokenizer=False)
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**settings, "quantization_config": config or {"x": 1}}))
    with pytest.raises(ModelError, match=says):
        open_checkpoint(directory)


def test_schemes_go_by_name_pattern_and_class(tmp_path: Path) -> None:
    """A module's own name or pattern goes before its class; each group may have a format of its own."""
    made = write_quantized(tmp_path, "ct-w8a8")
    config = json.loads((made.directory / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = {
        "targets": [r"re:.*down_proj$"],
        "format": "pack-quantized",
        "weights": {"num_bits": 4, "strategy": "channel", "symmetric": True},
    }
    name = "model.layers.0.mlp.down_proj"
    tensors = read_any(made.directory / "model.safetensors")
    for layer in range(3):
        module = f"model.layers.{layer}.mlp.down_proj"
        del tensors[f"{module}.weight"]
        tensors[f"{module}.weight_packed"] = ("I32", np.full((64, 12), 0x77777777))  # code 7, less 8
        tensors[f"{module}.weight_scale"] = ("BF16", np.full((64, 1), 0.5))
    write_any(made.directory / "model.safetensors", tensors)
    (made.directory / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(made.directory)
    assert len(checkpoint.notes) == 2
    assert checkpoint.tensors[f"{name}.weight"].source == "q4_0"
    assert (numbers(checkpoint.tensors[f"{name}.weight"]) == -0.5).all()
    groups["group_1"]["targets"] = [name]
    (made.directory / "config.json").write_text(json.dumps(config))
    tensors = open_checkpoint(made.directory).tensors  # the packed ones of other layers are int8 now
    damaged = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (1, 2)]
    assert [name for name, tensor in tensors.items() if tensor.damage] == damaged
