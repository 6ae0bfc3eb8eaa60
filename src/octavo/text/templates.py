"""The chat templates of a model by name, and which of them a conversation goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError, InvalidRequest, ModelError
from octavo.text.chat import Ask, ChatTemplate, Message
from octavo.text.tokenizer import Tokenizer

DEFAULT, TOOL_USE = "default", "tool_use"
MARKS = ("{{", "{%", "{#")
"""What makes a text a template and not the name of a file."""


class ChatTemplates:
    """At least one template; each is compiled when it is first used."""

    def __init__(self, sources: Mapping[str, str], *, tokenizer: Tokenizer) -> None:
        """`sources`: name -> Jinja, with a "default"."""
        assert DEFAULT in sources
        self._sources, self._tokenizer = dict(sources), tokenizer
        self._compiled: dict[str, ChatTemplate | ModelError] = {}

    def check(self) -> None:
        """Compiles the default template. Raises ModelError where that fails, as every conversation would."""
        self._get(DEFAULT)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def encode(self, messages: Sequence[Message], ask: Ask | None = None, **more: Any) -> list[int]:
        """Token ids; a conversation with tools goes through `tool_use` where the model has one. As
        ChatTemplate.encode."""
        asked = ask or Ask(**more)
        return self._for(asked).encode(messages, asked)

    def render(self, messages: Sequence[Message], ask: Ask | None = None, **more: Any) -> str:
        """The same as text. As ChatTemplate.render."""
        asked = ask or Ask(**more)
        return self._for(asked).render(messages, asked)

    def _for(self, ask: Ask) -> ChatTemplate:
        return self._get(TOOL_USE if ask.tools and TOOL_USE in self._sources else DEFAULT)

    def _get(self, name: str) -> ChatTemplate:
        found = self._compiled.get(name)
        if found is None:
            try:
                found = ChatTemplate(self._sources[name], tokenizer=self._tokenizer)
            except ModelError as error:
                found = error
            self._compiled[name] = found
        if isinstance(found, ModelError):
            raise ModelError(str(found))
        return found


def choose(sources: Mapping[str, str], wish: str | None) -> dict[str, str]:
    """The templates to use: the model's own, or those that `wish` (--chat-template) names.

    A wish is a template itself (it holds {{ or {%), the name of one of the model's, or a file. Raises ConfigError.
    """
    if wish is None:
        if DEFAULT not in sources and len(sources) == 1:
            return {DEFAULT: next(iter(sources.values()))}
        return dict(sources) if DEFAULT in sources else {}
    if any(mark in wish for mark in MARKS):
        return {DEFAULT: wish}
    if wish in sources:
        return {DEFAULT: sources[wish]}
    try:
        return {DEFAULT: Path(wish).read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        named = f"the name of one of the model's ({', '.join(sources)}), " if sources else ""
        raise ConfigError(
            f"--chat-template: got {wish[:200]!r}, which cannot be read as a file ({why}); allowed: a file, {named}"
            "or the template itself, with {{ or {% in it"
        ) from None


def missing(names: Sequence[str]) -> InvalidRequest:
    """The error of a conversation for a model that has no template to use."""
    if names:
        listed = ", ".join(names)
        return InvalidRequest(
            f"messages: this model has no default chat template; choose one (--chat-template): {listed}"
        )
    return InvalidRequest(
        "this model has no chat template; use completions, or start with one of your own (--chat-template)"
    )
