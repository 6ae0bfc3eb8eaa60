"""Models whose logits transformers told once (tests/data/family-logits.json), for machines without it.

Weights are made here, from the names and shapes that Octavo's own Program declares: that transformers could load them
says that these are right. `python -m tests.oracle.make_golden` asks again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.models.registry import build_program
from tests.tiny import stacked_experts, write_safetensors

FILE = Path(__file__).parents[1] / "data" / "family-logits.json"
"""Variant name -> config, ids, max_len, and logits at some positions for some vocabulary entries."""


def golden_weights(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the config's model, each from its own name, so that none depends on another's presence."""
    out: dict[str, NDArray[np.float32]] = {}
    for weight in build_program(config).weights.values():
        for part in weight.parts:
            rng = np.random.default_rng(zlib.crc32(part.tensor.encode()))
            shape = (part.rows,) if weight.kind == "vec" else (part.rows, weight.k)
            values = rng.standard_normal(shape)
            if weight.kind == "vec":
                values = 0.1 * values if part.tensor.endswith("bias") else 1 + 0.2 * values
            elif not weight.lookup:
                values *= 1.5 / np.sqrt(weight.k)
            out[part.tensor] = values.astype(np.float32)
    return out


def _joined_experts(weights: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Granite's way to store experts: gate and up of all in one tensor, down of all in another."""
    out = stacked_experts(weights)
    for name in [name for name in out if name.endswith(".experts.gate_proj.weight")]:
        place = name.removesuffix("experts.gate_proj.weight")
        gate, up, down = (out.pop(f"{place}experts.{part}.weight") for part in ("gate_proj", "up_proj", "down_proj"))
        out[f"{place}input_linear.weight"] = np.concatenate([gate, up], axis=1)
        out[f"{place}output_linear.weight"] = down
    return out


def write_golden(directory: Path, config: Mapping[str, Any]) -> Path:
    """The model as a Hugging Face directory."""
    return write_weights(directory, config, golden_weights(config))


def write_weights(directory: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]) -> Path:
    """A Hugging Face directory of the tensors that Octavo's Program declares, under the names of their files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    stored = _joined_experts(weights) if config["model_type"] == "granitemoe" else weights
    write_safetensors(directory / "model.safetensors", stored)
    return directory
