"""Sampling flags shared by chat and run, and how they combine with the model's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import InvalidRequest
from octavo.types.sampling import SamplingParams


class SamplingFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling (defaults: the model's generation_config.json, then neutral)."""

    max_tokens: int | None = None
    """Longest answer in tokens. Default: until the model stops or its length is full."""
    temperature: float | None = None
    """0 always takes the likeliest token."""
    top_p: float | None = None
    """Keep the likeliest tokens that together reach this probability."""
    top_k: int | None = None
    """Keep this many of the likeliest tokens; 0: all."""
    min_p: float | None = None
    """Drop tokens below this share of the likeliest one's probability."""
    presence_penalty: float | None = None
    """Lowers tokens that were already generated, from -2 to 2."""
    frequency_penalty: float | None = None
    """Lowers tokens by how often they were generated, from -2 to 2."""
    repetition_penalty: float | None = None
    """Above 1 lowers tokens seen in the prompt or the answer."""
    seed: int | None = None
    """Makes sampled text repeatable."""
    stop: tuple[str, ...] = ()
    """Text that ends the answer (left out of it)."""

    def given(self) -> dict[str, Any]:
        """Only what was set."""
        fields = msgspec.structs.asdict(self)
        return {k: v for k, v in fields.items() if v is not None and v != ()}


def params_from(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> SamplingParams:
    """Model defaults, overridden by what was given; `InvalidRequest` names a bad field."""
    merged: dict[str, Any] = {"max_tokens": None, **defaults, **given}
    stop = merged.get("stop")
    if isinstance(stop, str):
        merged["stop"] = (stop,)
    elif not isinstance(stop, list | tuple | None):
        raise InvalidRequest.field("stop", stop, "a text or a list of texts")
    try:
        return msgspec.convert(merged, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        from octavo.types.mismatch import refusal

        raise refusal(error, SamplingParams, merged, whole="sampling") from None
