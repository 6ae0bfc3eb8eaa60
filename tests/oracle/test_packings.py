"""Quantised layouts against the packages that define them: the same directory, read by them and by us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.weights.checkpoint import open_checkpoint
from tests.quantized_maker import CODES, read_any, write_quantized
from tests.unit.weights.test_weights_quantized import numbers

torch: Any = pytest.importorskip("torch", reason="the oracle extra is not installed: torch")


@pytest.mark.parametrize("kind", ["ct-w4a16", "ct-w4a16-zeros", "ct-w8a16"])
def test_compressed_tensors_unpacks_the_same(tmp_path: Path, kind: str) -> None:
    reason = "the compressed-tensors package is the oracle and is not installed"
    helpers: Any = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers", reason=reason)
    made = write_quantized(tmp_path, kind)
    raw = {name: value for name, (_, value) in read_any(made.directory / "model.safetensors").items()}
    bits = 8 if kind == "ct-w8a16" else 4
    checkpoint = open_checkpoint(made.directory)
    for name, want in made.matrices.items():
        module = name.removesuffix(".weight")
        packed = torch.tensor(raw[f"{module}.weight_packed"])
        codes = helpers.unpack_from_int32(packed, bits, torch.Size(want.shape)).numpy().astype(np.float64)
        scale = raw[f"{module}.weight_scale"].astype(np.float64)
        zero: Any = 0.0
        if kind == "ct-w4a16-zeros":
            words = torch.tensor(raw[f"{module}.weight_zero_point"])
            plain = helpers.unpack_from_int32(words, bits, torch.Size(scale.shape), packed_dim=0).numpy()
            zero = plain.repeat(32, 1).astype(np.float64)
        dense = (codes - zero) * scale.repeat(32, 1)
        np.testing.assert_array_equal(numbers(checkpoint.tensors[name]), dense.astype(np.float32))


@pytest.mark.parametrize("kind", ["fp8", "fp8-block"])
def test_transformers_dequantises_fp8_the_same(tmp_path: Path, kind: str) -> None:
    reason = "the oracle extra is not installed: transformers"
    module: Any = pytest.importorskip("transformers.integrations.finegrained_fp8", reason=reason)
    if not hasattr(module, "Fp8Dequantize"):
        pytest.skip("this transformers dequantises elsewhere")
    made = write_quantized(tmp_path, kind, hidden_size=96, intermediate_size=192)  # it wants whole blocks of 48
    raw = read_any(made.directory / "model.safetensors")
    checkpoint = open_checkpoint(made.directory)
    leaf = "weight_scale" if kind == "fp8" else "weight_scale_inv"
    for name in made.matrices:
        codes = torch.tensor(raw[name][1].view(np.uint8)).view(torch.float8_e4m3fn)
        scale = torch.tensor(np.atleast_2d(raw[f"{name.removesuffix('.weight')}.{leaf}"][1]))
        want = module.Fp8Dequantize(None)._dequantize_one(codes, scale, torch.bfloat16).to(torch.float32).numpy()
        assert want.astype(CODES["BF16"]).astype(np.float32).tolist() == want.tolist()
        np.testing.assert_array_equal(numbers(checkpoint.tensors[name]), want)
