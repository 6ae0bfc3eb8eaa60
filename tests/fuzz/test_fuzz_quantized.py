"""Mutated quantised directories: a typed error, or matrices of the size and type that they say (S19)."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.weights.checkpoint import open_checkpoint
from tests.quantized_maker import KINDS, read_any, write_quantized

VALUES: tuple[Any, ...] = (None, True, -1, 0, 8, 2**70, 1.5, "x", [], [1], ["a", {}], {}, {"a": 1}, {"weights": {}})
SMALL: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 320}


def use(path: Path) -> None:
    for tensor in open_checkpoint(path).tensors.values():
        assert tensor.read().size == tensor.nbytes


def refusal(path: Path) -> str:
    """Why `path` is refused; empty where it is not."""
    try:
        use(path)
    except ModelError as error:
        return str(error)
    return ""


def edits(value: Any) -> Iterator[Any]:
    """Copies of nested tables with one value replaced, each by each of VALUES."""
    for key in value if isinstance(value, dict) else ():
        for other in VALUES:
            yield {**copy.deepcopy(value), key: other}
        for inner in edits(value[key]):
            yield {**copy.deepcopy(value), key: inner}


@pytest.mark.parametrize("kind", ["awq", "gptq-act-order", "ct-w4a16-zeros", "fp8-block"])
def test_every_parameter_with_every_kind(tmp_path: Path, kind: str) -> None:
    made = write_quantized(tmp_path, kind, **SMALL)
    file = made.directory / "config.json"
    config = json.loads(file.read_text())
    refused = 0
    for quantization in edits(config["quantization_config"]):
        file.write_text(json.dumps({**config, "quantization_config": quantization}))
        refused += bool(refusal(made.directory))
    assert refused > 5


@pytest.mark.parametrize("kind", [k for k in KINDS if k in ("awq", "gptq", "ct-w4a16", "ct-w8a8", "fp8")])
def test_tensors_of_other_types_and_shapes(tmp_path: Path, kind: str) -> None:
    """Each tensor of one module in turn: another dtype of the same size, another shape of the same bytes, gone."""
    made = write_quantized(tmp_path, kind, **SMALL)
    file = made.directory / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert len(read_any(file)) == len(header)
    rng = random.Random(0)
    same = [("F32", "I32"), ("I32", "F32"), ("F16", "BF16"), ("BF16", "F16"), ("I8", "F8_E5M2"), ("F8_E4M3", "I8")]
    for name in [n for n in header if ".q_proj." in n]:
        shape = header[name]["shape"]
        dtypes = [b for a, b in same if a == header[name]["dtype"]]
        changes: list[dict[str, Any]] = [{"dtype": d} for d in dtypes]
        changes += [{"shape": shape[::-1]}, {"shape": [1, *shape]}, {"shape": [*shape, 1]}]
        for change in [*changes, None]:
            edited = {**header, name: {**header[name], **(change or {})}}
            if change is None:  # under a name that nobody asks for: offsets must stay whole
                edited[f"{name}_{rng.randrange(99)}"] = edited.pop(name)
            text = json.dumps(edited).encode()
            file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
            said = refusal(made.directory)
            assert not said or "q_proj" in said or str(made.directory) in said
