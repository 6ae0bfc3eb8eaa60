"""How tokens are chosen: names and meanings are vLLM's and OpenAI's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import msgspec

from octavo.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_N = 128
MAX_SEED = 2**63 - 1
MAX_ID = 2**31 - 1

_Take = Callable[[str, Any], Any]
"""(field's name, what was given) to what is kept, of exactly the field's type; `InvalidRequest` where it cannot be."""


def _whole(low: int, high: int, *, optional: bool = False) -> _Take:
    allowed = f"an integer from {low} to {high}" + (", or None" if optional else "")

    def take(name: str, value: Any) -> int | None:
        if optional and value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequest.field(name, value, allowed)
        return int(value)

    return take


def _is_number(value: Any, low: float, high: float) -> bool:
    """Comparing also rules out nan and the infinities."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _number(low: float, high: float, *, above: bool = False) -> _Take:
    allowed = f"a number above {low:g}, up to {high:g}" if above else f"a number from {low:g} to {high:g}"

    def take(name: str, value: Any) -> float:
        if not _is_number(value, low, high) or (above and value == low):
            raise InvalidRequest.field(name, value, allowed)
        return float(value)

    return take


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest.field(name, value, "True or False")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise InvalidRequest.field(name, value, f"a string, or a list of at most {MAX_STOP}")
    if len(texts) > MAX_STOP:
        raise InvalidRequest(f"{name}: got {len(texts)} strings, allowed: at most {MAX_STOP}", param=name)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARS:
            raise InvalidRequest.field(name, text, f"strings of 1 to {MAX_STOP_CHARS} characters")
        if any("\ud800" <= c <= "\udfff" for c in text):
            # No model writes half a character, and no message can carry it.
            raise InvalidRequest.field(name, text, "strings without lone surrogates")
    return tuple(str.__str__(text) for text in texts)


def _token(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise InvalidRequest.field(name, value, f"token ids, integers from 0 to {MAX_ID}")
    return int(value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence | Set) or isinstance(value, str | bytes | bytearray):
        raise InvalidRequest.field(name, value, f"a list of at most {MAX_STOP_IDS} token ids")
    if len(value) > MAX_STOP_IDS:
        raise InvalidRequest(f"{name}: got {len(value)} token ids, allowed: at most {MAX_STOP_IDS}", param=name)
    return tuple(_token(name, each) for each in value)


def _bias(name: str, value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequest.field(name, value, "a dict of token ids and numbers from -100 to 100, or None")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"{name}: got {len(value)} entries, allowed: at most {MAX_LOGIT_BIAS}", param=name)
    for each in value.values():
        if not _is_number(each, -100, 100):
            raise InvalidRequest.field(name, each, "token ids mapped to numbers from -100 to 100")
    return {_token(name, token): float(each) for token, each in value.items()}


_TAKE: dict[str, _Take] = {
    "n": _whole(1, MAX_N),
    "max_tokens": _whole(1, 2**31 - 1, optional=True),
    "min_tokens": _whole(0, 2**31 - 1),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1, above=True),
    "top_k": _whole(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(1e-3, 1e3),
    "seed": _whole(-MAX_SEED - 1, MAX_SEED, optional=True),
    "stop": _texts,
    "stop_token_ids": _ids,
    "include_stop_str_in_output": _flag,
    "ignore_eos": _flag,
    "logprobs": _whole(0, MAX_LOGPROBS, optional=True),
    "prompt_logprobs": _whole(0, MAX_LOGPROBS, optional=True),
    "logit_bias": _bias,
    "skip_special_tokens": _flag,
}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling of one request. Every field has a neutral default.

    Raises InvalidRequest for a value of the wrong type or out of range: the field, what was got, what is allowed. What
    is taken crosses to the engine unchanged.
    """

    n: int = 1
    max_tokens: int | None = 16
    """None: until the model's length or the KV pool is full."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy; ties go to the lower id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None: the engine draws one at intake and keeps it, so the text does not depend on the schedule."""
    stop: tuple[str, ...] = ()
    """Given as one string, a list of them, or None."""
    stop_token_ids: tuple[int, ...] = ()
    """Given as a list, or None."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """Top-n alternatives beside each sampled token; 0 gives the sampled token's own only."""
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, take in _TAKE.items():
            msgspec.structs.force_setattr(self, name, take(name, getattr(self, name)))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            allowed = f"at most max_tokens ({self.max_tokens})"
            raise InvalidRequest.field("min_tokens", self.min_tokens, allowed)
