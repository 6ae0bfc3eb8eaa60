"""Reading a Hugging Face config: every key checked, every refusal says what, got, allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from octavo.errors import ModelError
from octavo.program.rope import Llama3Scaling, RopeSpec

Config: TypeAlias = Mapping[str, Any]
MAX_SIZE = 1 << 24
"""Above any real width, layer count or vocabulary: a config that says more is damaged."""


def refuse(key: str, got: object, allowed: str) -> ModelError:
    return ModelError(f"config.{key}: got {got!r}, allowed: {allowed}")


def integer(config: Config, key: str, default: int | None = None, *, most: int = MAX_SIZE) -> int:
    """A positive whole number; a missing or null key gives the default."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise refuse(key, value, f"an integer from 1 to {most}")
    return value


def number(config: Config, key: str, default: float | None = None, *, where: str = "") -> float:
    """A finite positive number."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise refuse(where + key, value, "a positive number")
    return float(value)


def flag(config: Config, key: str, default: bool) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refuse(key, value, "true or false")
    return value


def only(config: Config, key: str, allowed: object) -> None:
    """Refuse a key whose value is present and not the one this architecture is built for."""
    value = config.get(key)
    if value is not None and value != allowed:
        raise refuse(key, value, f"{allowed!r} (nothing else is built for this architecture)")


def heads(config: Config, hidden: int) -> tuple[int, int, int]:
    """(query heads, KV heads, head width)."""
    count = integer(config, "num_attention_heads")
    kv = integer(config, "num_key_value_heads", count)
    if count % kv:
        raise refuse("num_key_value_heads", kv, f"a divisor of num_attention_heads ({count})")
    if config.get("head_dim") is None and hidden % count:
        raise refuse("num_attention_heads", count, f"a divisor of hidden_size ({hidden}), or an explicit head_dim")
    dim = integer(config, "head_dim", hidden // count)
    if dim % 2:
        raise refuse("head_dim", dim, "an even number")
    return count, kv, dim


def rope(config: Config, rotary: int) -> RopeSpec:
    """From `rope_parameters`, or from the older `rope_theta` and `rope_scaling`. Kinds: default, llama3."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise refuse("rope_parameters", found, "a table of parameters")
    for key, value in found.items():
        if isinstance(value, Mapping):
            raise refuse(f"rope_parameters.{key}", value, "one set of parameters for all layers")
    kind = found.get("rope_type") or found.get("type") or "default"
    theta = number(found, "rope_theta", number(config, "rope_theta", 10000.0), where="rope_parameters.")
    partial = found.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise refuse("partial_rotary_factor", partial, "1")
    if kind == "default":
        return RopeSpec(rotary, theta)
    if kind != "llama3":
        raise refuse("rope_parameters.rope_type", kind, "'default', 'llama3'")
    where = "rope_parameters."
    scaling = Llama3Scaling(
        factor=number(found, "factor", where=where),
        low_freq_factor=number(found, "low_freq_factor", where=where),
        high_freq_factor=number(found, "high_freq_factor", where=where),
        original_len=integer(found, "original_max_position_embeddings", config.get("original_max_position_embeddings")),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise refuse(where + "low_freq_factor", scaling.low_freq_factor, f"below {scaling.high_freq_factor}")
    return RopeSpec(rotary, theta, scaling)


def full_attention_only(config: Config, *, switch: bool = True) -> None:
    """Refuse a window on any layer. `switch`: what a config without `use_sliding_window` means by it."""
    kinds = config.get("layer_types") or []
    if any(kind != "full_attention" for kind in kinds):
        raise refuse("layer_types", sorted(set(kinds)), "'full_attention' (windows are not served yet)")
    window = config.get("sliding_window")
    if window is not None and flag(config, "use_sliding_window", switch):
        raise refuse("sliding_window", window, "null (windows are not served yet)")


def unknown_bias(config: Config, *keys: str) -> None:
    """Refuse biases that the architecture does not have."""
    for key in keys:
        if flag(config, key, False):
            raise refuse(key, True, "false (this architecture has no such bias)")
