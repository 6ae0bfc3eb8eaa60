"""Keys of a GGUF file known to change what a model computes: one that nothing here has read is refused, with its value.

Keys without a row are not looked at. A row says which values mean nothing, so that files which spell out a default are
opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from octavo.weights.gguf import GGUFArray
from octavo.weights.gguf_metadata import Metadata

Values = tuple[object, ...]


def _same_base(config: Mapping[str, Any]) -> Values:
    return (config["rope_theta"],)


def _usual_scale(config: Mapping[str, Any]) -> Values:
    """0 is llama.cpp's word for the usual scale."""
    return (0.0, 1 / math.sqrt(config.get("query_pre_attn_scalar", config["head_dim"])))


def _extrapolation(config: Mapping[str, Any]) -> Values:
    """A negative one is not set; without yarn nothing is blended, and 1 is what Hugging Face's configs write."""
    yarn = (config["rope_scaling"] or {}).get("rope_type") == "yarn"
    return (-1.0, 1.0) if yarn else (-1.0, 0.0, 1.0)


NEUTRAL: Mapping[str, Values | Callable[[Mapping[str, Any]], Values]] = {
    ".attention.causal": (True,),
    ".attention.clamp_kqv": (0.0,),
    ".attention.max_alibi_bias": (0.0,),
    ".attention.scale": _usual_scale,
    ".attention.temperature_scale": (0.0,),
    ".attn_logit_softcapping": (0.0,),
    ".embedding_scale": (0.0, 1.0),
    ".expert_weights_scale": (0.0, 1.0),
    ".final_logit_softcapping": (0.0,),
    ".logit_scale": (0.0, 1.0),
    ".residual_scale": (0.0, 1.0),
    ".rope.freq_base_swa": _same_base,
    ".rope.scaling.alpha": (0.0, 1.0),
    ".rope.scaling.attn_factor": (1.0,),
    ".rope.scaling.yarn_ext_factor": _extrapolation,
    ".rope.scaling.yarn_log_multiplier": (0.0,),
    ".use_parallel_residual": (False,),
}
"""Key behind the architecture's name -> values that change nothing, or what tells them from the configuration."""


def refuse_unread(meta: Metadata, config: Mapping[str, Any]) -> None:
    """To be called when the configuration has been read. Raises FileFormatError."""
    for key, row in NEUTRAL.items():
        value = meta.file.metadata.get(meta.arch + key)
        if value is None or meta.arch + key in meta.asked:
            continue
        neutral = row(config) if callable(row) else row
        if any(_same(value, other) for other in neutral):
            continue
        got = value.tolist()[:8] if isinstance(value, GGUFArray) else value
        allowed = " or ".join(["none", *map(str, neutral)])
        meta.fail(key, got, f"{allowed} (this architecture is built without it)")


def _same(value: object, other: object) -> bool:
    """Files hold float32."""
    if isinstance(value, (int, float)) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-6)
    return value == other
