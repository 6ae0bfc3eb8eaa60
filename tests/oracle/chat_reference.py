"""Chat templates as transformers renders them.

python -m tests.oracle.chat_reference      writes expected.json and the values of dialect.json (tests/data/chat) anew
"""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.chat_corpus import FOLDER, REFUSED, SAYS, asked, conversations, dialect, own_templates

NAMED = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
"""Special tokens of the tokenizer that unit tests use."""


def reference(template: str, conversation: dict[str, Any], named: dict[str, str]) -> str:
    """The rendering, or REFUSED where the template (or its reading of the conversation) fails."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

    ask = asked(conversation)
    kwargs = {**named, **ask.pop("chat_template_kwargs")}
    messages = _normalize_chat_messages(copy.deepcopy(conversation["messages"]))
    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, **ask, **kwargs)
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError):
        return REFUSED
    text: str = rendered[0]
    return text


def main() -> None:
    expected = {
        name: {each["name"]: reference(text, each, NAMED) for each in conversations()}
        for name, text in own_templates().items()
    }
    written = {source: reference(source, {"messages": SAYS}, NAMED) for source in dialect()}
    for name, found in (("expected", expected), ("dialect", written)):
        text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
