"""AWQ, GPTQ and compressed-tensors as the packages of that name pack them; tests/oracle/make_packings.py asked them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.weights.checkpoint import open_checkpoint
from tests.quantized_maker import CODES, read_any, write_any, write_quantized
from tests.unit.weights.test_weights_quantized import numbers

PACKINGS = json.loads((Path(__file__).parents[2] / "data" / "packings.json").read_text())
KINDS = [name for name in PACKINGS if name != "versions"]
MODULE = "model.layers.0.self_attn.k_proj"
"""A matrix of the size that was packed."""


def read(tensor: dict[str, Any]) -> NDArray[Any]:
    kind = np.dtype("u1") if tensor["type"] == "U8" else CODES[tensor["type"]]
    return np.frombuffer(base64.b64decode(tensor["data"]), kind).reshape(tensor["shape"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_packages_packed(tmp_path: Path, kind: str) -> None:
    made = write_quantized(tmp_path, kind)
    path = made.directory / "model.safetensors"
    tensors = {name: value for name, value in read_any(path).items() if not name.startswith(MODULE)}
    theirs = {f"{MODULE}.{leaf}": (t["type"], read(t)) for leaf, t in PACKINGS[kind]["tensors"].items()}
    assert {*tensors, *theirs} == {*read_any(path)}, "the same tensors as the test's own writer"
    write_any(path, {**tensors, **theirs})
    drawn = {name: read(value).astype(np.float32) for name, value in PACKINGS[kind]["drawn"].items()}
    of = drawn["groups"].astype(int)
    want = (drawn["codes"] - drawn["zeros"][:, of]) * drawn["scales"][:, of]
    tensor = open_checkpoint(made.directory).tensors[f"{MODULE}.weight"]
    got = numbers(tensor)
    if (
        tensor.source == "q8_0"
    ):  # scattered groups are coded anew: half a step, and 127 times what a scale is off in float16
        largest = np.abs(want.reshape(-1, 32)).max(axis=1)
        assert (np.abs(got - want).reshape(-1, 32).max(axis=1) <= largest * (1 / 254 + 2.0**-11)).all()
    elif tensor.source == "bf16":
        np.testing.assert_array_equal(got, want.astype(CODES["BF16"]).astype(np.float32))
    else:
        np.testing.assert_array_equal(got, want)
