"""Reading a Hugging Face config: every key checked, every refusal says what, got, allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from octavo.errors import ModelError

Config: TypeAlias = Mapping[str, Any]
MAX_SIZE = 1 << 24
"""Above any real width, layer count or vocabulary: a config that says more is damaged."""


def refuse(key: str, got: object, allowed: str) -> ModelError:
    return ModelError(f"config.{key}: got {got!r}, allowed: {allowed}")


def integer(config: Config, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int:
    """A whole number, positive unless `least` says otherwise; a missing or null key gives the default."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise refuse(key, value, f"an integer from {least} to {most}")
    return value


def number(config: Config, key: str, default: float | None = None, *, where: str = "") -> float:
    """A finite positive number."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise refuse(where + key, value, "a positive number")
    return float(value)


def numbers(config: Config, key: str, count: int, *, where: str = "") -> tuple[float, ...]:
    """`count` finite positive numbers."""
    values = config.get(key)
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} of them" if isinstance(values, list) else values
        raise refuse(where + key, got, f"a list of {count} numbers")
    return tuple(number({key: value}, key, where=where) for value in values)


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


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""What configs call the functions of program/ir.py."""


def activation(config: Config, *allowed: str) -> str:
    """The feed-forward's function, from `hidden_activation` or `hidden_act`: one of `allowed` (program/ir.py's)."""
    key = "hidden_activation" if config.get("hidden_activation") is not None else "hidden_act"
    name = config.get(key)
    if ACTIVATIONS.get(str(name)) not in allowed:
        raise refuse(key, name, ", ".join(known for known, fn in ACTIVATIONS.items() if fn in allowed))
    return ACTIVATIONS[str(name)]


def norm_offset(config: Config, default: float = 1.0) -> float:
    """What is added to norm weights at load: `default`, unless a file (GGUF) stores the sum and says 0."""
    return 0.0 if config.get("norm_offset") == 0 else default


def experts(config: Config, count: int, chosen: int) -> tuple[int, int]:
    """(experts of a layer, how many a token visits), with their defaults. Files spell the first in two ways."""
    key = "num_experts" if config.get("num_experts") is not None else "num_local_experts"
    count = integer(config, key, count, most=65536)
    return count, integer(config, "num_experts_per_tok", chosen, most=count)


def softcap(config: Config, key: str) -> float:
    """Where a value is bent to, by `cap * tanh(value / cap)`; 0 where the config has none."""
    return 0.0 if config.get(key) is None else number(config, key)


def full_attention_only(config: Config, *, switch: bool = True) -> None:
    """Refuse a window on any layer. `switch`: what a config without `use_sliding_window` means by it."""
    kinds = config.get("layer_types") or []
    if any(kind != "full_attention" for kind in kinds):
        raise refuse("layer_types", sorted(set(kinds)), "'full_attention' (this architecture is built without windows)")
    window = config.get("sliding_window")
    if window is not None and flag(config, "use_sliding_window", switch):
        raise refuse("sliding_window", window, "null (this architecture is built without windows)")


def unknown_bias(config: Config, *keys: str) -> None:
    """Refuse biases that the architecture does not have."""
    for key in keys:
        if flag(config, key, False):
            raise refuse(key, True, "false (this architecture has no such bias)")
