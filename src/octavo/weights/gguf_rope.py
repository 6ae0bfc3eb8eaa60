"""GGUF rope keys and factor tensors -> a Hugging Face `rope_scaling`."""

from __future__ import annotations

import math
import struct
from typing import Any

from octavo.errors import ModelError
from octavo.weights.gguf import GGUFTensor
from octavo.weights.gguf_metadata import Metadata


def rope_scaling(meta: Metadata, head_dim: int) -> dict[str, Any] | None:
    """None where positions are not stretched. Raises FileFormatError, ModelError."""
    kind = meta.get(".rope.scaling.type", str, "none")
    factor = meta.get(".rope.scaling.factor", float, meta.get(".rope.scale_linear", float, 1.0))
    freqs = meta.file.tensors.get("rope_freqs.weight")
    if freqs is not None:
        return _llama3(meta, freqs, head_dim)
    if kind == "none" or factor == 1.0:
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    original = meta.get(".rope.scaling.original_context_length", int)
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3(meta: Metadata, tensor: GGUFTensor, head_dim: int) -> dict[str, Any] | None:
    """Finds the parameters whose factors are the stored ones: Llama 3.1 to 3.3 differ in `factor` only."""
    count = head_dim // 2
    if tensor.type != "F32" or tensor.shape != (count,):
        meta.fail("rope_freqs.weight", f"{tensor.type} {tensor.shape}", f"F32 ({count},)")
    got = struct.unpack(f"<{count}f", tensor.data)
    if all(value == 1.0 for value in got):
        return None
    factor, low, high, original = max(got), 1.0, 4.0, 8192
    theta = meta.get(".rope.freq_base", float, 10_000.0)
    for i, value in enumerate(got):
        wave = 2 * math.pi * theta ** (2 * i / head_dim)
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        want = 1 / ((1 - smooth) / factor + smooth)
        if not math.isclose(want, value, rel_tol=1e-4):
            raise ModelError(f"{meta.file.path}: rope_freqs.weight: got unknown factors, allowed: Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": float(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
