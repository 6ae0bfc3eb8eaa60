"""Reading a config's rope: `rope_parameters`, or the older `rope_theta` and `rope_scaling`. One row a kind in KINDS.

A config that has both means the older ones. Source: transformers 5, `convert_rope_params_to_dict`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo.models.fields import Config, flag, integer, number, numbers, refuse
from octavo.program.rope import RopeSpec
from octavo.program.rope_kinds import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)

WHERE = "rope_parameters."


class Found(NamedTuple):
    """What a kind reads."""

    config: Config
    parameters: Mapping[str, Any]
    """Of the rope itself."""
    head_dim: int
    rotary: int
    """Columns of a head that turn."""
    partial: float

    def positive(self, key: str, default: float | None = None) -> float:
        return number(self.parameters, key, default, where=WHERE)

    @property
    def trained(self) -> int:
        """Positions the model was trained on."""
        return integer(self.config, "max_position_embeddings", most=1 << 21)

    def original(self, default: int | None = None) -> int:
        """original_max_position_embeddings: the config's own goes before that of the parameters."""
        key = "original_max_position_embeddings"
        return integer(self.config, key, self.parameters.get(key) or default, most=1 << 21)


def rope(config: Config, head_dim: int, *, parameters: Mapping[str, Any] | None = None) -> RopeSpec:
    """The config's rope for heads of `head_dim`. `parameters`: those of some layers, where the config has several sets.

    Raises ModelError.
    """
    found = parameters or config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise refuse("rope_parameters", found, "a table of parameters")
    for key, value in found.items():
        if isinstance(value, Mapping):
            raise refuse(WHERE + key, value, "one set of parameters for all layers")
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in KINDS:
        raise refuse(WHERE + "rope_type", kind, ", ".join(map(repr, KINDS)))
    theta = number(found, "rope_theta", number(config, "rope_theta", 10000.0), where=WHERE)
    partial = number(found, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0), where=WHERE)
    whole = kind == "proportional"  # turns the whole head, some of it by nothing
    rotary = head_dim if whole else int(head_dim * partial + 1e-6)
    if partial > 1 or rotary % 2 or rotary < 2:
        raise refuse("partial_rotary_factor", partial, f"up to 1, an even number of a head's {head_dim} columns")
    return RopeSpec(rotary, theta, KINDS[kind](Found(config, found, head_dim, rotary, partial)))


def _default(found: Found) -> None:
    return None


def _linear(found: Found) -> LinearScaling:
    return LinearScaling(found.positive("factor"))


def _dynamic(found: Found) -> DynamicScaling:
    if found.rotary < 4:
        raise refuse("head_dim", found.head_dim, "at least 4 columns that turn, for a dynamic rope")
    return DynamicScaling(found.positive("factor"), found.trained)


def _llama3(found: Found) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=found.positive("factor"),
        low_freq_factor=found.positive("low_freq_factor"),
        high_freq_factor=found.positive("high_freq_factor"),
        original_len=found.original(),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise refuse(WHERE + "low_freq_factor", scaling.low_freq_factor, f"below {scaling.high_freq_factor}")
    return scaling


def _yarn(found: Found) -> YarnScaling:
    original = found.original(found.trained)
    factor = found.positive("factor", found.trained / original)
    attention = found.parameters.get("attention_factor")
    if attention is None and found.parameters.get("mscale") and found.parameters.get("mscale_all_dim"):
        attention = _mscale(factor, found.positive("mscale")) / _mscale(factor, found.positive("mscale_all_dim"))
    elif attention is None:
        attention = _mscale(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_len=original,
        attention=number({"attention_factor": attention}, "attention_factor", where=WHERE),
        beta_fast=number({"beta_fast": found.parameters.get("beta_fast") or 32}, "beta_fast", where=WHERE),
        beta_slow=number({"beta_slow": found.parameters.get("beta_slow") or 1}, "beta_slow", where=WHERE),
        truncate=flag(found.parameters, "truncate", True),
    )


def _mscale(factor: float, weight: float) -> float:
    """YaRN's temperature of the scores, as a factor of q and of k."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(found: Found) -> LongRopeScaling:
    original = found.original(found.trained)
    factor = found.positive("factor", found.trained / original)
    attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    half = found.rotary // 2
    return LongRopeScaling(
        short=numbers(found.parameters, "short_factor", half, where=WHERE),
        long=numbers(found.parameters, "long_factor", half, where=WHERE),
        original_len=original,
        attention=found.positive("attention_factor", attention),
    )


def _proportional(found: Found) -> ProportionalScaling:
    turning = int(found.partial * found.head_dim // 2)
    return ProportionalScaling(turning, found.positive("factor", 1.0))


KINDS: Mapping[str, Callable[[Found], Scaling | None]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "proportional": _proportional,
}
"""rope_type -> what reads its parameters."""
