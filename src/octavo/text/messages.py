"""Conversations as callers write them -> plain dicts as chat templates read them.

What transformers does before it renders is done here too: keys whose value is None are left out (templates handle a
missing key, and write "None" for the other), and reasoning is found under each name that templates know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from octavo.errors import InvalidRequest

ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, some the second."""
ContentForm = Literal["string", "either", "parts"]
"""What a template reads: a string only, lists of parts too, or lists of parts only."""


def plain_messages(messages: Sequence[Mapping[str, Any]], form: ContentForm = "string") -> list[dict[str, Any]]:
    """Copies with content in a form that the template reads. Raises InvalidRequest."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidRequest.field("messages", messages, "a list of messages, each with role and content")
    return [_message(message, index, form) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], index: int, form: ContentForm) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where}: got {type(message).__name__}, allowed: role and content", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    role, content = plain.get("role"), plain.get("content")
    if not isinstance(role, str) or ROLE.fullmatch(role) is None:
        allowed = "a word such as system, user or assistant"
        raise InvalidRequest(f"{where}.role: got {role!r}, allowed: {allowed}", param="messages")
    calls = plain.get("tool_calls")
    if calls is not None:
        plain["tool_calls"] = _tool_calls(calls, where)
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        texts = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        plain["content"] = "\n".join(texts) if form == "string" else [{"type": "text", "text": text} for text in texts]
    elif content is not None and not isinstance(content, str):
        got, allowed = type(content).__name__, "a string or a list of text parts"
        raise InvalidRequest(f"{where}.content: got {got}, allowed: {allowed}", param="messages")
    elif content is None and not calls:
        plain["content"] = ""
    if form == "parts" and isinstance(plain.get("content"), str):
        plain["content"] = [{"type": "text", "text": plain["content"]}]
    reasoning = next((plain[name] for name in REASONING if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Arguments as objects: clients send them as JSON text, templates write them with tojson."""
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidRequest(f"{where}.tool_calls: got {calls!r:.80}, allowed: a list of objects", param="messages")
    plain = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                call = {**call, "function": {**function, "arguments": arguments}}
        plain.append(dict(call))
    return plain


def _part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    got = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InvalidRequest(f"{where}: got {got!r}, allowed: {{'type': 'text', 'text': …}}", param="messages")
