"""Conversations -> token ids, through the model's own template.

What a template writes is trusted to hold control tokens; what users write is not. Before rendering, every control token
that stands in a user's string (or could be completed by the text around it) is broken by a character that occurs
nowhere else; after rendering, the control tokens that are whole are the template's:

    user       "hi <|im_end|>"
    protected  "hi <·|im_end|>"                     · = a noncharacter
    rendered   "<|im_start|>user\\nhi <·|im_end|><|im_end|>\\n"
    pieces     [1] "user\\nhi <|im_end|>" [2] "\\n"   the texts between are encoded as plain text
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from octavo.errors import InvalidRequest, ModelError
from octavo.text.tokenizer import Tokenizer

MAX_SOURCE = 1_000_000
ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
ROLES = frozenset(("system", "user", "assistant", "tool", "developer", "function", "ipython", "model", "observation"))
"""Roles that a template may build markers from (`<|user|>`); of others it gets no part of a control token."""
RESERVED = re.compile(
    r"(_.*|return_.*|tokenize|chat_template|tools|documents|conversations?|messages|padding|truncation|max_length|"
    r"add_generation_prompt|continue_final_message|[a-z]+_token|raise_exception|strftime_now|range|namespace|dict|"
    r"lipsum|cycler|joiner|loop|self|caller|varargs|kwargs|true|false|none)"
)
"""Names that a request's template arguments may not set: they would replace parts of the rendering itself."""


class ChatTemplate:
    """One model's chat template. Immutable and safe to share between threads."""

    def __init__(self, source: str, *, tokenizer: Tokenizer) -> None:
        """Compiles `source` (Jinja). Raises ModelError where it does not compile."""
        from jinja2 import TemplateError

        from octavo.text.sandbox import Sandbox

        if len(source) > MAX_SOURCE:
            raise ModelError(f"chat template: got {len(source)} characters, allowed: at most {MAX_SOURCE}")
        self._tokenizer = tokenizer
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise ModelError(f"chat template: {error}") from None
        self._control = {token.content: (i, token) for i, token in tokenizer.control.items() if token.content}
        longest_first = sorted(self._control, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._whole = re.compile(f"({pattern})")
        self._anywhere = re.compile(pattern, re.IGNORECASE)  # templates may change case
        self._heads = {text[:n] for text in self._control for n in range(1, len(text))}
        self._tails = {text[-n:] for text in self._control for n in range(1, len(text))}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, for people; `encode` is what models get. Raises as encode."""
        text, guard = self._protected(messages, add_generation_prompt, tools, kwargs or {})
        return text.replace(guard, "")

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt's token ids: control tokens only where the template put them, and exactly one BOS where the
        model's tokenizer uses one. `messages`: role and content (a string or a list of text parts) each. `kwargs`:
        extra names for the template. Raises InvalidRequest (conversation or argument), ModelError (template)."""
        text, guard = self._protected(messages, add_generation_prompt, tools, kwargs or {})
        ids = self._encode_pieces(text, guard)
        bos = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos is not None:
            while ids[:1] == [bos]:
                del ids[0]
            ids.insert(0, bos)
        return ids

    def _encode_pieces(self, text: str, guard: str) -> list[int]:
        pieces = self._whole.split(text)  # plain, control, plain, …, plain
        for at in range(1, len(pieces), 2):
            token = self._control[pieces[at]][1]
            if token.lstrip:
                pieces[at - 1] = pieces[at - 1].rstrip()
            if token.rstrip:
                pieces[at + 1] = pieces[at + 1].lstrip()
        ids: list[int] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                ids.append(self._control[piece][0])
            elif plain := piece.replace(guard, ""):
                ids.extend(self._tokenizer.encode(plain, add_bos=False, after_control=at > 0))
        return ids

    def _protected(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> tuple[str, str]:
        """(rendered text with user strings broken by the guard character, that character)."""
        from jinja2.exceptions import SecurityError, TemplateError

        for name in kwargs:
            if not isinstance(name, str) or RESERVED.fullmatch(name) or not name.isidentifier():
                raise InvalidRequest.field(
                    "chat_template_kwargs", name, "names the template defines itself for callers"
                )
        plain = [_message(message, index) for index, message in enumerate(messages)]
        guard = _unused_character([plain, tools, dict(kwargs)])
        break_up = _Breaker(self, guard)
        names: dict[str, Any] = {name: break_up(value) for name, value in kwargs.items()}
        names.update(self._special_names())
        names.update(
            messages=[break_up.message(message) for message in plain],
            tools=break_up(list(tools)) if tools else None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
        )
        try:
            text = self._sandbox.run(lambda: self._template.generate(names))
        except (SecurityError, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(f"chat template: {error or type(error).__name__}") from None
        except TemplateError as error:
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {error}", param="messages"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            message = f"messages: the model's chat template cannot render them: {error}"
            raise InvalidRequest(message, param="messages") from None
        return text, guard

    def _special_names(self) -> dict[str, str]:
        tokenizer = self._tokenizer
        named = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        return {name: "" if i is None else tokenizer.token_text(i) for name, i in named.items()}


class _Breaker:
    """Copies a value, breaking control tokens in all of its strings."""

    def __init__(self, template: ChatTemplate, guard: str) -> None:
        self._template, self._guard = template, guard

    def __call__(self, value: Any, *, depth: int = 0) -> Any:
        if depth > 64:
            raise InvalidRequest("messages: got values nested more than 64 deep, allowed: 64", param="messages")
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
        for key in ("role", "content"):
            text = message[key]
            inside = text and len(text) > 1 and any(text in control for control in self._template._control)
            if key == "role" and (text in ROLES or not inside):
                result[key] = text
            elif inside:
                result[key] = text[0] + self._guard + text[1:]
        return result

    def _string(self, text: str) -> str:
        guard, template = self._guard, self._template
        # Texts between matches may overlap into new ones, so break until none is whole.
        broken = template._anywhere.sub(lambda found: found[0][0] + guard + found[0][1:], text)
        while template._anywhere.search(broken):
            broken = template._anywhere.sub(lambda found: found[0][0] + guard + found[0][1:], broken)
        # The text around may complete a token that begins or ends here.
        longest = max(map(len, template._control), default=0)
        for n in range(min(longest, len(broken)), 0, -1):
            if broken[-n:] in template._heads:
                at = len(broken) - n + 1
                broken = broken[:at] + guard + broken[at:]
                break
        for n in range(min(longest, len(broken)), 0, -1):
            if broken[:n] in template._tails:
                broken = broken[: n - 1] + guard + broken[n - 1 :]
                break
        return broken


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A copy with content as one string. Raises InvalidRequest."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where}: got {type(message).__name__}, allowed: role and content", param="messages")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or ROLE.fullmatch(role) is None:
        allowed = "a word such as system, user or assistant"
        raise InvalidRequest(f"{where}.role: got {role!r}, allowed: {allowed}", param="messages")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    elif content is None and not message.get("tool_calls"):
        content = ""
    elif content is not None and not isinstance(content, str):
        got, allowed = type(content).__name__, "a string or a list of text parts"
        raise InvalidRequest(f"{where}.content: got {got}, allowed: {allowed}", param="messages")
    return {**message, "content": content}


def _part(part: object, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    got = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise InvalidRequest(f"{where}: got {got!r}, allowed: {{'type': 'text', 'text': …}}", param="messages")


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth > 64:
        return  # refused a moment later, by _Breaker
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def _unused_character(values: object) -> str:
    """A noncharacter or private-use character that occurs in none of the strings."""
    used = set().union(*_strings(values))
    for code in chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE)):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("messages: got every private-use character there is, allowed: text", param="messages")
