"""What goes into the engine and what comes out. The engine sees ids, never text."""

from __future__ import annotations

import enum

import msgspec

from octavo.types.sampling import SamplingParams


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One generation stream asked for. n > 1 is several Requests that share a prompt."""

    seq_id: int
    prompt_ids: bytes
    """Packed little-endian int32."""
    params: SamplingParams
    """The seed is set (at intake); the scheduler cuts max_tokens to what can be held, None to all of it."""
    arrival: float = 0.0
    """Seconds of time.monotonic(); ties are broken by seq_id."""
    priority: int = 0
    """Lower is served first, under the priority policy."""
    root: bytes = b""
    """Opaque start of the prefix-hash chain: tenant salt, adapter, rope choice."""


class Logprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    token: int
    logprob: float
    rank: int
    """1 = the most likely."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The chosen (or given) token first, then the top-n in order of rank."""

    chosen: Logprob
    top: list[Logprob]


class SeqOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step gave one sequence. new_ids holds a stop token if that ended it."""

    seq_id: int
    new_ids: list[int]
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The EOS or stop id that ended the sequence (the last of new_ids)."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at first admission."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """The entries that became known in this step, in order; the first prompt token has none."""
    error: str | None = None
    queued_s: float = 0.0
    """With the first token: seconds from intake to first being scheduled."""


class Completion(msgspec.Struct, frozen=True):
    """One of a request's n answers, so far (cumulative)."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or token id that ended it; None for EOS and for length."""
    logprobs: list[TokenLogprobs] | None = None
    delta: str = ""
    """Text added since the previous output of this completion."""
    delta_ids: list[int] = []
    error: str | None = None


class RequestOutput(msgspec.Struct, frozen=True):
    """The state of one request (cumulative). `outputs` has n entries."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry a prompt token; None for the first."""
