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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from octavo.errors import InvalidRequest, ModelError
from octavo.text.guard import Breaker, ControlTokens, unused_characters
from octavo.text.messages import ContentForm, plain_messages
from octavo.text.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]

MAX_SOURCE = 1_000_000
PROBE = "Octavo asks"
"""A text that no template writes by itself."""
RESERVED = re.compile(
    r"(_.*|return_.*|tokenize|chat_template|tools|documents|conversations?|messages|padding|truncation|max_length|"
    r"add_generation_prompt|continue_final_message|[a-z]+_token|raise_exception|strftime_now|range|namespace|dict|"
    r"lipsum|cycler|joiner|loop|self|caller|varargs|kwargs|true|false|none)"
)
"""Names that a request's template arguments may not set: they would replace parts of the rendering itself."""
KWARGS_ALLOWED = (
    "names that the template reads as its own; not those that rendering is made of (messages, tools, "
    "add_generation_prompt, tokenize, return_*, *_token, self, …)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one rendering is asked for, besides the messages."""

    add_generation_prompt: bool = True
    """End with the opening of the assistant's turn."""
    continue_final_message: bool = False
    """End inside the last message, so that the model goes on with it."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """JSON schemas of functions, as in OpenAI's API."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """More names for the template, none of them RESERVED."""

    def check(self) -> None:
        """Raises InvalidRequest."""
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message: got true beside add_generation_prompt, allowed: one of them",
                param="continue_final_message",
            )
        for field in ("add_generation_prompt", "continue_final_message"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidRequest.field(field, getattr(self, field), "true or false")
        tools = self.tools if self.tools is not None else ()
        if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
            raise InvalidRequest.field("tools", type(tools).__name__, "a list of objects, JSON schemas of functions")
        more = self.chat_template_kwargs if self.chat_template_kwargs is not None else {}
        if not isinstance(more, Mapping):
            raise InvalidRequest.field("chat_template_kwargs", type(more).__name__, "an object")
        for name in more:
            if not isinstance(name, str) or RESERVED.fullmatch(name) or not name.isidentifier():
                got = name[:80] if isinstance(name, str) else type(name).__name__
                raise InvalidRequest.field("chat_template_kwargs", got, KWARGS_ALLOWED)


DEFAULT_ASK = Ask()


class ChatTemplate:
    """One chat template. Immutable and safe to share between threads."""

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
        self._tokens = ControlTokens(self._control)

    def render(self, messages: Sequence[Message], ask: Ask | None = None, **more: Any) -> str:
        """The prompt as text, for people; `encode` is what models get. Arguments and errors as there."""
        text, guard = self._protected(messages, ask or Ask(**more))
        return text.replace(guard, "")

    def encode(self, messages: Sequence[Message], ask: Ask | None = None, **more: Any) -> list[int]:
        """The prompt's token ids: control tokens only where the template put them, and exactly one BOS where the
        model's tokenizer uses one. `messages`: role and content (a string or a list of text parts) each. `more`: the
        fields of Ask. Raises InvalidRequest (conversation or argument), ModelError (template)."""
        text, guard = self._protected(messages, ask or Ask(**more))
        ids = self._encode_pieces(text, guard)
        bos = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos is not None:
            while ids[:1] == [bos]:
                del ids[0]
            ids.insert(0, bos)
        return ids

    @cached_property
    def content_form(self) -> ContentForm:
        """What the template reads as content: asked for a string, and for the same in a part. Raises ModelError."""
        texts = []
        for content in (PROBE, [{"type": "text", "text": PROBE}]):
            message = {"role": "user", "content": content}
            try:
                text = self._run({"messages": [message], "tools": None, "add_generation_prompt": False})
            except InvalidRequest:
                text = ""
            texts.append(text if PROBE in text else "")
        of_string, of_parts = texts
        if of_parts and not of_string:
            return "parts"
        return "either" if of_parts and of_parts == of_string else "string"

    def _encode_pieces(self, text: str, guard: str) -> list[int]:
        pieces = self._tokens.whole.split(text)  # plain, control, plain, …, plain
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

    def _protected(self, messages: Sequence[Message], ask: Ask) -> tuple[str, str]:
        """(rendered text with user strings broken by the guard character, that character)."""
        ask.check()
        plain = plain_messages(messages, self.content_form)
        kwargs = dict(ask.chat_template_kwargs or {})
        guard, end = unused_characters([plain, ask.tools, kwargs], 2)
        break_up = Breaker(self._tokens, guard)
        broken = [break_up.message(message) for message in plain]
        if ask.continue_final_message:
            _mark_end(broken, end + " ")
        names: dict[str, Any] = {name: break_up(value) for name, value in kwargs.items()}
        names.update(
            messages=broken,
            tools=break_up(list(ask.tools)) if ask.tools else None,
            add_generation_prompt=ask.add_generation_prompt,
        )
        text = self._run(names)
        return (_cut(text, end) if ask.continue_final_message else text), guard

    def _run(self, names: Mapping[str, Any]) -> str:
        from jinja2.exceptions import SecurityError, TemplateError

        everything = {**names, **self._tokenizer.named, "documents": None}
        render: Callable[[], Iterable[str]] = lambda: self._template.generate(everything)  # noqa: E731
        try:
            return self._sandbox.run(render)
        except (SecurityError, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(f"chat template: {str(error) or type(error).__name__}") from None
        except TemplateError as error:
            message = f"messages: the model's chat template refuses them: {error}"
            raise InvalidRequest(message, param="messages") from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            message = f"messages: the model's chat template cannot render them: {error}"
            raise InvalidRequest(message, param="messages") from None


def _mark_end(messages: list[dict[str, Any]], mark: str) -> None:
    """Appends `mark` to the last text of the last message. Raises InvalidRequest where there is none."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + mark
    elif content:
        content[-1]["text"] += mark
    else:
        raise InvalidRequest(
            "continue_final_message: got a conversation whose last message has no content, allowed: text to go on with",
            param="continue_final_message",
        )


def _cut(text: str, end: str) -> str:
    """`text` up to the mark; a template that trims what it writes has cut off the space behind it."""
    at = text.rfind(end)
    if at < 0:
        raise InvalidRequest(
            "continue_final_message: the model's chat template leaves the last message out", param="messages"
        )
    kept = text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()
    return kept.replace(end + " ", "").replace(end, "")
