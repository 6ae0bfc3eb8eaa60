"""Sampling defaults and the chat template."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from octavo.config.args import EngineArgs
from octavo.engine.fake import fake_front
from octavo.engine.front import Front
from octavo.errors import ConfigError, InvalidRequest, ModelError
from octavo.llm.front import ModelFront, default_sampling

ARGS = EngineArgs(model="fake", executor="fake")
SPEC = fake_front(ARGS).tokenizer_spec


def test_defaults_are_the_usable_part(caplog: pytest.LogCaptureFixture) -> None:
    given = {"temperature": 0.6, "top_p": 7, "top_k": 20, "max_new_tokens": 9, "eos_token_id": 2, "do_sample": True}
    with caplog.at_level(logging.WARNING, "octavo"):
        assert default_sampling(given) == {"temperature": 0.6, "top_k": 20, "max_tokens": 9}
    assert "top_p" in caplog.text


def test_defaults_are_logged_and_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    front = Front(name="m", tokenizer_spec=SPEC, generation_config={"temperature": 0.6})
    with caplog.at_level(logging.INFO, "octavo"):
        assert ModelFront.build(front, ARGS).default_sampling == {"temperature": 0.6}
    assert "temperature=0.6" in caplog.text
    off = EngineArgs(model="fake", executor="fake", generation_config="none")
    assert ModelFront.build(front, off).default_sampling == {}


def test_no_template_is_said() -> None:
    front = ModelFront.build(Front(name="m", tokenizer_spec=SPEC), ARGS)
    with pytest.raises(InvalidRequest, match="no chat template"):
        front.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    args = EngineArgs(model="fake", executor="fake", chat_template=str(path))
    ids = ModelFront.build(Front(name="m", tokenizer_spec=SPEC), args).render_chat([{"role": "user", "content": "hi"}])
    assert bytes(ids) == b"[hi]"
    with pytest.raises(ConfigError, match="chat-template"):
        missing = EngineArgs(model="fake", executor="fake", chat_template=str(tmp_path / "none"))
        ModelFront.build(Front(name="m", tokenizer_spec=SPEC), missing)


def test_a_template_that_does_not_compile_is_told(caplog: pytest.LogCaptureFixture) -> None:
    broken = "{{ messages | no_such }}"
    model = Front(name="m", tokenizer_spec=SPEC, chat_templates={"default": broken})
    with caplog.at_level(logging.WARNING, "octavo"):
        front = ModelFront.build(model, ARGS)
    assert "no_such" in caplog.text and "--chat-template" in caplog.text
    assert front.tokenizer.encode("hi"), "completions go on"
    with pytest.raises(ModelError, match="no_such"):
        front.render_chat([{"role": "user", "content": "hi"}])
    with pytest.raises(ModelError, match="no_such"):
        ModelFront.build(model, EngineArgs(model="fake", executor="fake", chat_template=broken))
