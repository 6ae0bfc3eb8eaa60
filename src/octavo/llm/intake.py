"""From what a caller asks to what the engine takes: validate, tokenise, complete the parameters, expand n."""

from __future__ import annotations

import hashlib
import itertools
import operator
import random
import secrets
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from octavo.config.policy import POLICIES, PolicyName
from octavo.config.resolve import EngineConfig
from octavo.errors import InvalidRequest, PromptTooLong
from octavo.facts import Facts
from octavo.text.tokenizer import Tokenizer
from octavo.types import Request, SamplingParams

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, ids, {"prompt": text} or {"prompt_token_ids": ids}."""

MAX_SALT_CHARS = 256
CHARS_PER_TOKEN = 128
"""No tokenizer we read averages more characters a token than this over a prompt: longer text is too long, unread."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request the engine may be given: `requests` has n entries that share a prompt."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    """As the caller gave them, with the seed resolved."""
    requests: list[Request]
    arrival: float


def derive_seed(seed: int, index: int) -> int:
    """The seed of the index-th of n answers: the first keeps the request's own, so n = 1 and n = 2 share theirs."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(struct.pack("<qq", seed, index), digest_size=8, person=b"octavo n").digest()
    return int.from_bytes(digest, "little") >> 1


def split_prompt(prompt: Prompt) -> tuple[str | None, Sequence[int] | None]:
    """(text, None) or (None, ids). Raises InvalidRequest for anything else."""
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        if set(prompt) not in ({"prompt"}, {"prompt_token_ids"}):
            raise InvalidRequest.field("prompt", sorted(prompt), "one of the keys prompt and prompt_token_ids")
        (prompt,) = prompt.values()
        if isinstance(prompt, str):
            return prompt, None
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray):
        return None, prompt
    raise InvalidRequest.field("prompt", type(prompt).__name__, "a string or a list of token ids")


def pack_ids(ids: Iterable[int], *, vocab_size: int, name: str = "prompt") -> array[int]:
    """Token ids as an int32 array. Raises InvalidRequest for what is no integer or out of range (S15)."""
    try:
        ids = list(ids)
        if not set(map(type, ids)) <= {int}:
            if any(isinstance(i, bool) for i in ids):
                raise TypeError
            ids = [operator.index(i) for i in ids]
        packed = array("i", ids)
    except (TypeError, OverflowError):
        allowed = f"token ids, integers from 0 to {vocab_size - 1}"
        for bad in ids:
            if not isinstance(bad, int) or isinstance(bad, bool) or not 0 <= bad < vocab_size:
                raise InvalidRequest.field(name, bad, allowed) from None
        raise InvalidRequest.field(name, ids, allowed) from None
    if packed:
        for bad in (min(packed), max(packed)):
            if not 0 <= bad < vocab_size:
                raise InvalidRequest(f"{name}: got token id {bad}, allowed: 0 to {vocab_size - 1}", param=name)
    return packed


def check_params(params: object, name: str = "params") -> SamplingParams:
    """`params`, called `name` where they came from. Raises InvalidRequest for anything but a SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequest.field(name, params, "a SamplingParams")
    return params


def check_priority(priority: object, policy: PolicyName) -> None:
    """Raises InvalidRequest for what is no integer of 32 bits, and where a priority would be ignored."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
        raise InvalidRequest.field("priority", priority, f"an integer from {-(2**31)} to {2**31 - 1}")
    if priority and not POLICIES[policy].uses_priority:
        others = " or ".join(name for name, one in POLICIES.items() if one.uses_priority)
        raise InvalidRequest.field(
            "priority",
            priority,
            f"0 (the scheduling policy here is {policy}; --scheduling-policy {others} takes others)",
        )


def check_salt(cache_salt: object) -> None:
    """Raises InvalidRequest for anything but None or a text of a length that is allowed."""
    if cache_salt is None:
        return
    if not isinstance(cache_salt, str) or not 0 < len(cache_salt) <= MAX_SALT_CHARS:
        got = f"{len(cache_salt)} characters" if isinstance(cache_salt, str) else type(cache_salt).__name__
        raise InvalidRequest(f"cache_salt: got {got}, allowed: 1 to {MAX_SALT_CHARS} characters", param="cache_salt")


class Intake:
    """Thread-safe but for the counter of ids, which CPython makes atomic: long prompts are prepared on a thread."""

    def __init__(self, *, tokenizer: Tokenizer, facts: Facts, config: EngineConfig, seed: int | None = None) -> None:
        self.tokenizer, self.facts, self.config = tokenizer, facts, config
        self._ids = itertools.count(1)
        self._draw = random.Random(seed).getrandbits if seed is not None else secrets.randbits
        self.max_len = config.max_model_len

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        parse_special: bool = False,
        arrival: float | None = None,
    ) -> Prepared:
        """Raises InvalidRequest, PromptTooLong."""
        arrival = time.monotonic() if arrival is None else arrival
        check_params(params)
        check_priority(priority, self.config.scheduler.policy)
        root = self._root(cache_salt)
        text, given = split_prompt(prompt)
        if text is not None:
            if len(text) > CHARS_PER_TOKEN * self.max_len:
                raise PromptTooLong(
                    f"prompt: got {len(text)} characters, allowed: up to {self.max_len - 1} tokens", param="prompt"
                )
            given = self.tokenizer.encode(text, parse_special=parse_special)
        assert given is not None
        self._check_length(len(given))
        ids = pack_ids(given, vocab_size=self.facts.vocab_size)
        params = self._complete(params, len(ids))
        if sys.byteorder != "little":
            ids.byteswap()
        packed = ids.tobytes()
        requests = [
            Request(
                seq_id=next(self._ids),
                prompt_ids=packed,
                params=child,
                arrival=arrival,
                priority=int(priority),
                root=root,
            )
            for child in self._children(params)
        ]
        return Prepared(
            request_id=request_id or f"req-{secrets.token_hex(8)}",
            prompt=text,
            prompt_ids=list(given),
            params=params,
            requests=requests,
            arrival=arrival,
        )

    def _check_length(self, length: int) -> None:
        if length == 0:
            raise InvalidRequest("prompt: got no tokens, allowed: at least one", param="prompt")
        if length + 1 > self.max_len:
            raise PromptTooLong(
                f"prompt: got {length} tokens, allowed: up to {self.max_len - 1} "
                f"(the longest sequence here is {self.max_len} tokens, and the answer needs at least one)",
                param="prompt",
            )

    def _complete(self, params: SamplingParams, length: int) -> SamplingParams:
        """Check what needs the model; resolve the seed. A max_tokens without room is the scheduler's to cut and tell:
        it knows what the pool holds."""
        vocab = self.facts.vocab_size
        pack_ids(params.stop_token_ids, vocab_size=vocab, name="stop_token_ids")
        pack_ids(params.logit_bias or (), vocab_size=vocab, name="logit_bias")
        room = self.max_len - length
        if params.min_tokens > room:
            allowed = f"up to {room} after a prompt of {length} tokens"
            raise InvalidRequest.field("min_tokens", params.min_tokens, allowed)
        return msgspec.structs.replace(params, seed=self._draw(63) if params.seed is None else params.seed)

    @staticmethod
    def _children(params: SamplingParams) -> Iterable[SamplingParams]:
        """One complete set for each of the n sequences; the engine sees no strings, and scores the prompt once."""
        assert params.seed is not None
        for index in range(params.n):
            yield msgspec.structs.replace(
                params,
                n=1,
                stop=(),
                seed=derive_seed(params.seed, index),
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
            )

    @staticmethod
    def _root(cache_salt: str | None) -> bytes:
        """Prefixes are shared only among equal salts."""
        check_salt(cache_salt)
        if cache_salt is None:
            return b""
        salt = cache_salt.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(salt, digest_size=16, person=b"octavo salt").digest()
