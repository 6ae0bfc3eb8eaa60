"""Chat templates rendered here and by transformers: our own small ones, and those of real models at hand."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequest
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from tests.chat_corpus import REFUSED, SAYS, asked, conversations, dialect, own_templates, templates_at_hand
from tests.unit.text.conftest import tiny_metadata

pytest.importorskip("transformers", reason="needs transformers (the oracle extra)")

from tests.oracle.chat_reference import NAMED, reference

TEMPLATES = {**own_templates(), **templates_at_hand()}


def ours(template: ChatTemplate, conversation: dict[str, Any]) -> str:
    try:
        return template.render(conversation["messages"], **asked(conversation))
    except InvalidRequest:
        return REFUSED


def in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every content as a list."""
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m
        for m in messages
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], tokenizer=Tokenizer.from_gguf(tiny_metadata()))
    form, differ = template.content_form, []
    for conversation in conversations():
        asked_there = conversation
        if form == "string" and conversation["name"] == "parts":
            # transformers fails, or writes the list as Python does; here the texts are joined by line ends
            asked_there = next(each for each in conversations() if each["name"] == "parts joined")
        if form == "parts":  # transformers would walk through the characters; here strings become parts
            asked_there = conversation = {**conversation, "messages": in_parts(conversation["messages"])}
        want, got = reference(TEMPLATES[name], asked_there, NAMED), ours(template, conversation)
        if want != got:
            differ.append((conversation["name"], want, got))
    assert not differ


def test_dialect_as_recorded() -> None:
    got = {source: reference(source, {"messages": SAYS}, NAMED) for source in dialect()}
    assert got == dialect(), "tests/unit/text/test_text_dialect.py holds our renderings to these"
