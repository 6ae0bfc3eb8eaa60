"""Strict decoding of request bodies: nothing is silently ignored (R30), and a refusal names the field."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import Any, TypeVar

import msgspec

from octavo.errors import InvalidRequest, UnsupportedField
from octavo.types.mismatch import locate, refusal

Body = TypeVar("Body", bound=msgspec.Struct)
Value = TypeVar("Value")

MAX_DEPTH = 32
"""Nesting of free-form values (chat_template_kwargs)."""
MAX_NODES = 10_000

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI and vLLM that are not served, with the values (besides null) that ask for nothing."""

EMPTY_ONLY = frozenset({"refusal", "audio", "function_call", "annotations"})
"""Fields of messages that may only be empty."""

_UNKNOWN = re.compile(r"Object contains unknown field `[^`]*`")
"""The error of a field of the body itself; one deeper inside says where."""


def decode(body: bytes, kind: type[Body]) -> Body:
    """The body as a Struct.

    Raises: InvalidRequest naming the field that is wrong; UnsupportedField naming one that does not exist or is not
    served here, unless its value asks for nothing.
    """
    try:
        return _strictly(body, kind)
    except msgspec.ValidationError as error:
        return _second_look(body, kind, error)


def _second_look(body: bytes, kind: type[Body], error: msgspec.ValidationError) -> Body:
    """Off the fast path: drop fields that ask for nothing and try again, or say what is wrong."""
    if _UNKNOWN.fullmatch(str(error)) is None:
        raise _explain(error, kind, body) from None
    fields, known = _strictly(body, dict[str, msgspec.Raw]), set(kind.__struct_fields__)
    for name in [name for name in fields if name not in known]:
        refuse_unless_neutral(name, _freely(bytes(fields.pop(name))), known)
    try:
        return _strictly(msgspec.json.encode(fields), kind)
    except msgspec.ValidationError as bad:
        raise _explain(bad, kind, body) from None


def _strictly(body: bytes, kind: type[Value]) -> Value:
    """Raises: msgspec.ValidationError; InvalidRequest where it is no JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        raise
    except RecursionError:
        raise InvalidRequest("request body: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"request body: not valid JSON ({error})") from None


def _freely(body: bytes) -> Any:
    """The JSON as whatever it is; numbers beyond 64 bits are infinite. Raises: InvalidRequest."""
    try:
        return json.loads(body, parse_constant=_no_constant, parse_int=_integer)
    except RecursionError:
        raise InvalidRequest("request body: nested too deeply") from None
    except ValueError as bad:
        raise InvalidRequest(f"request body: not valid JSON ({bad})") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is none")


def _integer(digits: str) -> int | float:
    """Python refuses to read an integer of thousands of digits."""
    return int(digits) if len(digits) < 1000 else math.inf


def refuse_unless_neutral(name: str, value: object, known: set[str]) -> None:
    """Raises UnsupportedField, except for a field of OpenAI's or vLLM's whose value asks for nothing."""
    if name in NEUTRAL:
        # True == 1 in Python, and best_of true is not best_of 1: compare types too.
        if value is None or any(type(value) is type(ok) and value == ok for ok in NEUTRAL[name]):
            return
        raise UnsupportedField(f"{name}: not supported by this server; leave it out", param=name)
    raise UnsupportedField(f"{name}: no such field{suggest(name, known)}", param=name)


def suggest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name[:64], sorted(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def _explain(error: msgspec.ValidationError, kind: type[msgspec.Struct], body: bytes) -> InvalidRequest:
    value = _freely(body)
    where = locate(error, kind, value).where
    if where.rpartition(".")[2] in EMPTY_ONLY:
        return UnsupportedField(f"{where}: not supported by this server; leave it out", param=where)
    return refusal(error, kind, value, whole="request body")


def check_free_form(name: str, value: object) -> None:
    """Bounds the depth and size of a value of any shape, without recursion. Raises: InvalidRequest."""
    level: list[object] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        if nodes > MAX_NODES:
            raise InvalidRequest(f"{name}: more than {MAX_NODES} values", param=name)
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise InvalidRequest(f"{name}: nested more than {MAX_DEPTH} deep", param=name)
