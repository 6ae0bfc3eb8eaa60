"""The chat's commands against a talker that needs no model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import terminal
from octavo.cli.conversation import Conversation
from octavo.cli.session import Message, RemoteTalker, Usage
from octavo.errors import EngineDead, InvalidRequest, PromptTooLong


class Echo:
    """Answers with the number of messages and the last one; may fail or be interrupted mid-answer."""

    name = "echo"

    def __init__(self) -> None:
        self.seen: list[list[Message]] = []
        self.options: list[Mapping[str, Any]] = []
        self.fail: BaseException | None = None
        self.closed = 0

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Iterator[str | Usage]:
        self.seen.append(list(messages))
        self.options.append(dict(options))
        try:
            yield f"{len(messages)}:"
            if self.fail:
                raise self.fail
            yield messages[-1]["content"]
            yield Usage(5, 2, 7, "stop")
        finally:
            self.closed += 1

    def close(self) -> None: ...


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def talk(echo: Echo, out: io.StringIO) -> Conversation:
    return Conversation(echo, options={}, system=None, out=out)


def test_answers_stream_and_the_conversation_grows(talk: Conversation, out: io.StringIO) -> None:
    assert talk.take("hello")
    assert talk.take("again")
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 2
    assert talk.messages[1]["content"] == "1:hello"
    assert "3:again\n" in out.getvalue()
    assert "[7 tokens, " in out.getvalue()
    assert "2 of 5 prompt tokens cached" in out.getvalue()


def test_ctrl_c_stops_the_answer_and_keeps_its_beginning(talk: Conversation, echo: Echo, out: io.StringIO) -> None:
    echo.fail = KeyboardInterrupt()
    assert talk.take("hello")
    assert talk.messages[-1] == {"role": "assistant", "content": "1:"}
    assert "stopped]" in out.getvalue()
    assert echo.closed == 1


def test_a_failed_message_is_taken_back(talk: Conversation, echo: Echo, out: io.StringIO) -> None:
    echo.fail = PromptTooLong("9000 tokens, allowed: 8192")
    assert talk.take("hello")
    assert talk.messages == []
    assert "9000" in out.getvalue()


def test_system_set_clear_help_unknown(talk: Conversation, echo: Echo, out: io.StringIO) -> None:
    for line in ("/system Be brief.", "/set temperature 0.5", "/set stop END", "hi", "/clear", "/help", "/nonsense"):
        assert talk.take(line)
    assert echo.seen[0][0] == {"role": "system", "content": "Be brief."}
    assert echo.options[0] == {"temperature": 0.5, "stop": ["END"]}
    assert talk.turns == []
    assert talk.system == "Be brief."
    assert "/regenerate" in out.getvalue()
    assert "no command /nonsense" in out.getvalue()


@pytest.mark.parametrize("line", ["/set temperature hot", "/set temperature -1", "/set warmth 3", "/set n 2"])
def test_bad_options_are_refused(line: str, talk: Conversation, out: io.StringIO) -> None:
    talk.take(line)
    assert talk.options == {}
    assert out.getvalue()


def test_unset(talk: Conversation) -> None:
    talk.take("/set top_k 5")
    assert talk.options == {"top_k": 5}
    talk.take("/set top_k default")
    assert talk.options == {}


def test_regenerate(talk: Conversation, echo: Echo) -> None:
    talk.take("/regenerate")
    assert echo.seen == []
    talk.take("hello")
    talk.take("/regenerate")
    assert echo.seen[0] == echo.seen[1]
    assert len(talk.turns) == 2


def test_save_and_load(talk: Conversation, echo: Echo, tmp_path: Path, out: io.StringIO) -> None:
    path = tmp_path / "talk.json"
    for line in ("/system S", "/set seed 3", "hello", f"/save {path}"):
        talk.take(line)
    assert path.stat().st_mode & 0o077 == 0
    other = Conversation(echo, options={}, system=None, out=out)
    other.take(f"/load {path}")
    assert (other.messages, other.options) == (talk.messages, {"seed": 3})
    path.write_text(json.dumps({"turns": []}))
    other.take(f"/load {path}")
    other.take("/load /nowhere/at/all")
    assert other.messages == talk.messages
    assert "not a saved conversation" in out.getvalue()


@pytest.mark.parametrize("line", ["/exit", "/quit", " /bye "])
def test_exit(line: str, talk: Conversation) -> None:
    assert not talk.take(line)


def test_blank_input_is_ignored_and_paths_are_not_commands(talk: Conversation, echo: Echo) -> None:
    assert talk.take("   ")
    assert talk.take("/etc/hosts is a file")
    assert len(echo.seen) == 1


def test_piped_input_with_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'one\n"""\nline 1\n\nline 2\n"""\n"""a\nb"""\n"""c"""\nlast'
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert list(terminal.read_lines(history=False)) == ["one", "line 1\n\nline 2", "a\nb", "c", "last"]


def test_history_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = terminal.history_file()
    assert path == tmp_path / "octavo" / "chat_history"
    assert path.stat().st_mode & 0o077 == 0


def test_remote_talker_says_who_does_not_answer() -> None:
    with pytest.raises(EngineDead, match="no server answers at 127"):
        RemoteTalker("127.0.0.1:9")
    with pytest.raises(InvalidRequest):
        RemoteTalker("file:///etc/passwd")
