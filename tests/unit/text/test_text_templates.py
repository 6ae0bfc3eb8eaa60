"""A model's templates by name, and --chat-template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ConfigError, ModelError
from octavo.text.templates import ChatTemplates, choose, missing
from octavo.text.tokenizer import Tokenizer

HI = [{"role": "user", "content": "hi"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]
NAMED = {
    "default": "plain {{ messages[0].content }}",
    "tool_use": "tools {{ tools[0].function.name }}",
    "rag": "{% for %}",
}


def test_tools_choose_their_template(tiny: Tokenizer) -> None:
    templates = ChatTemplates(NAMED, tokenizer=tiny)
    assert templates.names == ("default", "tool_use", "rag")
    assert templates.render(HI) == "plain hi" and templates.render(HI, tools=[]) == "plain hi"
    assert templates.render(HI, tools=TOOLS) == "tools f"
    assert templates.encode(HI, tools=TOOLS) == tiny.encode("tools f")
    alone = ChatTemplates({"default": "{{ tools[0].type }}"}, tokenizer=tiny)
    assert alone.render(HI, tools=TOOLS) == "function"
    ChatTemplates(NAMED, tokenizer=tiny).check()


def test_one_that_does_not_compile_fails_conversations(tiny: Tokenizer) -> None:
    templates = ChatTemplates({**NAMED, "default": "{{ messages | no_such }}"}, tokenizer=tiny)
    for _ in range(2):
        with pytest.raises(ModelError, match="chat template: No filter named 'no_such'"):
            templates.check()
        with pytest.raises(ModelError, match="no_such"):
            templates.encode(HI)
    assert templates.render(HI, tools=TOOLS) == "tools f"


def test_choose(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("Ω {{ messages }}", encoding="utf-8")
    assert choose(NAMED, None) == NAMED
    assert choose({"rag": "r"}, None) == {"default": "r"}, "the only one"
    assert choose({"rag": "r", "tool_use": "t"}, None) == {} == choose({}, None)
    assert choose(NAMED, "tool_use") == {"default": NAMED["tool_use"]}
    assert choose(NAMED, "a {{ b }}") == {"default": "a {{ b }}"} == choose({}, "a {{ b }}")
    assert choose(NAMED, str(file)) == {"default": "Ω {{ messages }}"}
    (tmp_path / "latin").write_bytes(b"\xff")
    for wish in (str(tmp_path / "none"), str(tmp_path), str(tmp_path / "latin"), "x\0y"):
        with pytest.raises(ConfigError, match="--chat-template") as caught:
            choose(NAMED, wish)
        assert "default, tool_use, rag" in str(caught.value) and "{{" in str(caught.value)


def test_missing_says_what_there_is() -> None:
    assert "rag, tool_use" in str(missing(["rag", "tool_use"]))
    assert "--chat-template" in str(missing([]))
