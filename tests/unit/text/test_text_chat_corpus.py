"""A corpus of conversations through small templates, against what transformers made of them
(tests/oracle/chat_reference.py writes expected.json; tests/oracle/test_chat_templates.py asks it anew)."""

from __future__ import annotations

import json

import pytest

from octavo.errors import InvalidRequest
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from tests.chat_corpus import FOLDER, REFUSED, asked, conversations, own_templates

EXPECTED: dict[str, dict[str, str]] = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
CASES = [(template, each) for template in own_templates() for each in conversations()]


@pytest.mark.parametrize(
    ("name", "conversation"), CASES, ids=lambda case: case if isinstance(case, str) else case["name"]
)
def test_as_expected(name: str, conversation: dict[str, object], tiny: Tokenizer) -> None:
    template = ChatTemplate(own_templates()[name], tokenizer=tiny)
    want = EXPECTED[name][str(conversation["name"])]
    if conversation["name"] == "parts" and template.content_form == "string":
        assert want == REFUSED  # transformers hands the list to a template that cannot add it to a string
        want = EXPECTED[name]["parts joined"]  # here it gets what transformers makes of the joined texts
    messages = conversation["messages"]
    assert isinstance(messages, list)
    if want == REFUSED:
        with pytest.raises(InvalidRequest, match="messages"):
            template.render(messages, **asked(conversation))
        return
    assert template.render(messages, **asked(conversation)) == want
    ids = template.encode(messages, **asked(conversation))
    assert tiny.decode(ids, skip_special_tokens=False) == want
