"""How tokens are chosen: names and meanings are vLLM's and OpenAI's."""

from __future__ import annotations

import math

import msgspec

from octavo.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_STOP = 16
MAX_STOP_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_N = 128
MAX_SEED = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling of one request. Every field has a neutral default; `InvalidRequest` names a bad one."""

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
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """Top-n alternatives beside each sampled token; 0 gives the sampled token's own only."""
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, allowed: str) -> None:
            if not ok:
                raise InvalidRequest.field(name, getattr(self, name), allowed)

        def number(name: str, low: float, high: float, allowed: str) -> None:
            value = getattr(self, name)
            good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            check(good and low <= value <= high, name, allowed)

        def whole(name: str, low: int, high: int, *, optional: bool = False) -> None:
            value = getattr(self, name)
            if optional and value is None:
                return
            good = isinstance(value, int) and not isinstance(value, bool)
            check(good and low <= value <= high, name, f"an integer from {low} to {high}")

        whole("n", 1, MAX_N)
        whole("max_tokens", 1, 2**31 - 1, optional=True)
        whole("min_tokens", 0, 2**31 - 1)
        number("temperature", 0.0, 100.0, "a number from 0 to 100")
        number("top_p", 0.0, 1.0, "a number above 0, up to 1")
        check(self.top_p > 0, "top_p", "a number above 0, up to 1")
        whole("top_k", -1, 2**31 - 1)
        number("min_p", 0.0, 1.0, "a number from 0 to 1")
        number("presence_penalty", -2.0, 2.0, "a number from -2 to 2")
        number("frequency_penalty", -2.0, 2.0, "a number from -2 to 2")
        number("repetition_penalty", 1e-3, 1e3, "a number from 0.001 to 1000")
        whole("seed", -MAX_SEED - 1, MAX_SEED, optional=True)
        whole("logprobs", 0, MAX_LOGPROBS, optional=True)
        whole("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        check(len(self.stop) <= MAX_STOP, "stop", f"at most {MAX_STOP} strings")
        good = all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in self.stop)
        check(good, "stop", f"strings of 1 to {MAX_STOP_CHARS} characters")
        good = all(isinstance(t, int) and not isinstance(t, bool) and 0 <= t < 2**31 for t in self.stop_token_ids)
        check(good and len(self.stop_token_ids) <= 256, "stop_token_ids", "at most 256 token ids")
        if self.max_tokens is not None:
            check(self.min_tokens <= self.max_tokens, "min_tokens", f"at most max_tokens ({self.max_tokens})")
        bias = self.logit_bias or {}
        check(len(bias) <= MAX_LOGIT_BIAS, "logit_bias", f"at most {MAX_LOGIT_BIAS} entries")
        good = all(
            isinstance(t, int)
            and 0 <= t < 2**31
            and isinstance(v, int | float)
            and math.isfinite(v)
            and -100 <= v <= 100
            for t, v in bias.items()
        )
        check(good, "logit_bias", "token ids mapped to numbers from -100 to 100")
