"""GGUF rope keys and factor tensors -> a Hugging Face `rope_scaling`."""

from __future__ import annotations

import math
import struct
from typing import Any

from octavo.weights.gguf_metadata import Metadata


def rope_scaling(meta: Metadata, rotary: int) -> dict[str, Any] | None:
    """None where positions are not stretched; `rotary` columns of a head turn. Raises FileFormatError."""
    tensors = meta.file.tensors
    kind, factor = _stretch(meta)
    for beside in ("rope_freqs.weight", "rope_factors_long.weight"):
        if beside in tensors and kind != "none" and factor not in (0.0, 1.0):
            # llama.cpp applies both; no file that means it is known.
            meta.fail(".rope.scaling.factor", factor, f"none or 0.0 or 1.0 beside the factors of {beside}")
    if "rope_freqs.weight" in tensors:
        return _llama3(meta, _factors(meta, "rope_freqs.weight", rotary), rotary)
    scaling: dict[str, Any] = {}
    original = meta.get(".rope.scaling.original_context_length", int)
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    if "rope_factors_long.weight" in tensors:
        attention = meta.get(".rope.scaling.attn_factor", float)
        if attention is not None:
            scaling["attention_factor"] = attention
        return scaling | {
            "rope_type": "longrope",
            "short_factor": list(_factors(meta, "rope_factors_short.weight", rotary)),
            "long_factor": list(_factors(meta, "rope_factors_long.weight", rotary)),
        }
    if kind == "none" or factor in (0.0, 1.0):
        return None
    scaling |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        for key in ("beta_fast", "beta_slow"):
            scaling[key] = meta.get(f".rope.scaling.yarn_{key}", float)
        attention = _yarn_attention(meta, factor)
        if attention is not None:
            scaling["attention_factor"] = attention
    return scaling


def _stretch(meta: Metadata) -> tuple[str, float]:
    """Type and factor in llama.cpp's readings of what is left out: a factor without a type is linear, one of 0 is
    none."""
    kind: str = meta.get(".rope.scaling.type", str, "linear")
    factor: float = meta.get(".rope.scaling.factor", float, meta.get(".rope.scale_linear", float, 1.0))
    if factor < 0:
        meta.fail(".rope.scaling.factor", factor, "a number from 0 on")
    return kind, factor


def _yarn_attention(meta: Metadata, factor: float) -> float | None:
    """What attention is scaled by; None for what `factor` asks for.

    Two keys say it: `attn_factor` times what the factor asks for, as llama.cpp reads it, and all of it in
    `yarn_attn_factor`, as its converter writes Hugging Face's (others write 1 there for what the factor asks for).
    llama.cpp reads the second for Grok alone; a file whose two keys disagree is refused."""
    times: float | None = meta.get(".rope.scaling.attn_factor", float)
    whole: float = meta.get(".rope.scaling.yarn_attn_factor", float, 1.0)
    if times is None:
        return None if whole == 1.0 else whole
    product = times * (1 + 0.1 * math.log(factor))
    if whole != 1.0 and not math.isclose(whole, product, rel_tol=1e-5):
        allowed = f"1.0 or {product:.6g}, which follows from {meta.arch}.rope.scaling.attn_factor = {times:.6g}"
        meta.fail(".rope.scaling.yarn_attn_factor", whole, allowed)
    return product


def _divisors(factors: tuple[float, ...]) -> dict[str, Any]:
    """The kind whose frequencies are divided one by one, at every length."""
    return {
        "rope_type": "longrope",
        "short_factor": list(factors),
        "long_factor": list(factors),
        "attention_factor": 1.0,
    }


def _factors(meta: Metadata, name: str, rotary: int) -> tuple[float, ...]:
    tensor, count = meta.file.tensors.get(name), rotary // 2
    if tensor is None or tensor.type != "F32" or tensor.shape != (count,):
        got = "nothing" if tensor is None else f"{tensor.type} {tensor.shape}"
        meta.fail(name, got, f"F32 ({count},)")
    return struct.unpack(f"<{count}f", tensor.data)


def _llama3(meta: Metadata, got: tuple[float, ...], rotary: int) -> dict[str, Any] | None:
    """Finds the parameters whose factors are the stored ones: Llama 3.1 to 3.3 differ in `factor` only. Other factors
    divide the frequencies as they are."""
    if all(value == 1.0 for value in got):
        return None
    factor, low, high, original = max(got), 1.0, 4.0, 8192
    theta = meta.get(".rope.freq_base", float, 10_000.0)
    for i, value in enumerate(got):
        wave = 2 * math.pi * theta ** (2 * i / rotary)
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        want = 1 / ((1 - smooth) / factor + smooth)
        if not math.isclose(want, value, rel_tol=1e-4):
            return _divisors(got)
    return {
        "rope_type": "llama3",
        "factor": float(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
