"""Breaks control tokens in what users wrote, so that only the template's own are whole when it has rendered (S16)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from octavo.errors import InvalidRequest

MAX_DEPTH = 64
ROLES = frozenset(("system", "user", "assistant", "tool", "developer", "function", "ipython", "model", "observation"))
"""Roles that a template may build markers from (`<|user|>`); of others it gets no part of a control token."""


class ControlTokens:
    """The control tokens of a tokenizer, ready to be found whole and in part."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted(texts, key=len, reverse=True)
        pattern = "|".join(map(re.escape, self.texts)) or r"(?!)"
        self.whole = re.compile(f"({pattern})")
        self.anywhere = re.compile(pattern, re.IGNORECASE)  # templates may change case
        self.heads = {text[:n] for text in self.texts for n in range(1, len(text))}
        self.tails = {text[-n:] for text in self.texts for n in range(1, len(text))}
        self.longest = len(self.texts[0]) if self.texts else 0


class Breaker:
    """Copies a value, breaking control tokens in all of its strings with the character `guard`."""

    def __init__(self, tokens: ControlTokens, guard: str) -> None:
        self._tokens, self._guard = tokens, guard

    def __call__(self, value: Any, *, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            got = f"values nested more than {MAX_DEPTH} deep"
            raise InvalidRequest(f"messages: got {got}, allowed: {MAX_DEPTH}", param="messages")
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Mapping):
            return {self(k, depth=depth + 1): self(v, depth=depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self(item, depth=depth + 1) for item in value]
        return value

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """As a call; and content or an unknown role that is the middle of a control token is broken too."""
        result: dict[str, Any] = {key: self(value) for key, value in message.items()}
        if message["role"] in ROLES or not self._inside(message["role"]):
            result["role"] = message["role"]
        else:
            result["role"] = self._cut(message["role"])
        content = message.get("content")
        if isinstance(content, str) and self._inside(content):
            result["content"] = self._cut(content)
        elif isinstance(content, list):
            for part, broken in zip(content, result["content"], strict=True):
                if self._inside(part["text"]):
                    broken["text"] = self._cut(part["text"])
        return result

    def _inside(self, text: str) -> bool:
        return len(text) > 1 and any(text in control for control in self._tokens.texts)

    def _cut(self, text: str) -> str:
        return text[0] + self._guard + text[1:]

    def _string(self, text: str) -> str:
        guard, tokens = self._guard, self._tokens
        # Texts between matches may overlap into new ones, so break until none is whole.
        broken = tokens.anywhere.sub(lambda found: found[0][0] + guard + found[0][1:], text)
        while tokens.anywhere.search(broken):
            broken = tokens.anywhere.sub(lambda found: found[0][0] + guard + found[0][1:], broken)
        # The text around may complete a token that begins or ends here.
        for n in range(min(tokens.longest, len(broken)), 0, -1):
            if broken[-n:] in tokens.heads:
                at = len(broken) - n + 1
                broken = broken[:at] + guard + broken[at:]
                break
        for n in range(min(tokens.longest, len(broken)), 0, -1):
            if broken[:n] in tokens.tails:
                broken = broken[: n - 1] + guard + broken[n - 1 :]
                break
        return broken


def unused_characters(values: object, count: int) -> list[str]:
    """Noncharacters or private-use characters that occur in none of the strings. Raises InvalidRequest."""
    used = set().union(*_strings(values))
    free = (chr(code) for code in chain(range(0xFDD0, 0xFDEF), range(0xF0000, 0xFFFFE)) if chr(code) not in used)
    found = [char for char, _ in zip(free, range(count), strict=False)]
    if len(found) < count:
        raise InvalidRequest("messages: got every private-use character there is, allowed: text", param="messages")
    return found


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth > MAX_DEPTH:
        return  # refused a moment later, by Breaker
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)
