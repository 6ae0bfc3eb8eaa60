"""JSONL runs against an engine stand-in: order, errors a line, resuming, exit codes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import batch, run
from octavo.cli.errors import OK, SOME_FAILED, UsageError
from octavo.config.args import EngineArgs
from octavo.errors import EngineDead, InvalidRequest, PromptTooLong, QueueFull
from octavo.text.chat import Ask
from octavo.types import Completion, FinishReason, RequestOutput, SamplingParams


class Engine:
    """Says the prompt back, later lines sooner; knows a few prompts that fail."""

    chat_template: object | None = object()
    default_sampling: dict[str, Any] = {"temperature": 0.5}
    model_names = ("org/m",)

    def __init__(self) -> None:
        self.params: list[SamplingParams] = []
        self.answered = 0
        self.full = 0
        self.asked: list[dict[str, Any]] = []

    def render_chat(self, messages: Sequence[dict[str, Any]], **asked: Any) -> list[int]:
        Ask(**asked).check()
        self.asked.append(asked)
        if "content" not in messages[-1]:
            raise InvalidRequest("content is missing", param="messages")
        return [ord(c) for c in messages[-1]["content"]]

    async def generate(
        self, prompt: str | Sequence[int], params: SamplingParams, *, stream: bool = True
    ) -> AsyncIterator[RequestOutput]:
        text = prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
        if text == "long":
            raise PromptTooLong("9 tokens, allowed: 8")
        if text == "dead":
            raise EngineDead("the engine died")
        if text == "bug":
            raise ZeroDivisionError("oh")
        if text == "full" and not self.full:
            self.full += 1
            raise QueueFull("full", retry_after=0)
        self.params.append(params)
        await asyncio.sleep(0.02 / (1 + self.answered))
        self.answered += 1
        outputs = [
            Completion(i, text.upper(), [1, 2], FinishReason.STOP, error="bad logits" if text == "nan" else None)
            for i in range(params.n)
        ]
        if stream:
            yield RequestOutput("r", None, [1, 2, 3], outputs, False)
        yield RequestOutput("r", None, [1, 2, 3], outputs, True, num_cached_tokens=1)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()

    @asynccontextmanager
    async def start(_: EngineArgs) -> AsyncIterator[Engine]:
        yield engine

    monkeypatch.setattr(batch, "engine", start)
    monkeypatch.setattr(run, "engine", start)
    return engine


def answer(path: Path, out: Path | None, *lines: object, resume: bool = False, seqs: int = 4) -> int:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    job = batch.Job(str(path), str(out) if out else None, resume, False, None, True, {"max_tokens": 7})
    return asyncio.run(batch.run_batch(EngineArgs(model="m", max_num_seqs=seqs), job))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_order_fields_and_defaults(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out"
    lines: list[object] = [{"id": i, "prompt": f"p{i}", "seed": i} for i in range(30)]
    assert answer(tmp_path / "in", out, *lines) == OK
    found = records(out)
    assert [r["line"] for r in found] == list(range(1, 31))
    assert [r["id"] for r in found] == list(range(30))
    assert found[4]["text"] == "P4"
    assert found[4]["finish_reason"] == "stop"
    assert found[4]["usage"] == {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2}
    assert all(p.max_tokens == 7 and p.temperature == 0.5 for p in llm.params)


def test_every_kind_of_line(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out"
    body = {"model": "m", "messages": [{"role": "user", "content": "d"}]}
    code = answer(
        tmp_path / "in",
        out,
        {"prompt": "a"},
        "",
        {"prompt": [98]},
        {"messages": [{"role": "user", "content": "c"}], "n": 2},
        {"custom_id": "z", "method": "POST", "url": "/v1/chat/completions", "body": body},
        {"prompt": "full"},
    )
    assert code == OK
    assert [r["text"] for r in records(out)] == ["A", "B", ["C", "C"], "D", "FULL"]
    assert records(out)[3]["id"] == "z"
    assert [r["line"] for r in records(out)] == [1, 3, 4, 5, 6], "of the file: the second line is blank"


def test_a_line_for_another_model_is_that_lines_error(tmp_path: Path, llm: Engine) -> None:
    out, body = tmp_path / "out", {"messages": [{"role": "user", "content": "a"}], "stream": True}
    models: list[object] = ["gpt-4", "org/m", "m", None, "", 5]
    lines: list[object] = [{"custom_id": "z", "url": "/v1/x", "body": body | {"model": model}} for model in models]
    assert answer(tmp_path / "in", out, *lines, {"prompt": "b", "model": "gpt-4"}) == SOME_FAILED
    found = records(out)
    assert [r.get("text") for r in found] == [None, "A", "A", "A", "A", None, None]
    for record in (found[0], found[-1]):
        assert record["error"]["type"] == "not_found_error"
        assert record["error"]["message"] == "model 'gpt-4' is not served here; served: 'org/m', 'm'"
    assert found[5]["error"]["message"] == "model: got 5, allowed: a text"
    assert [r["id"] for r in found[:-1]] == ["z"] * 6


def test_what_is_for_the_template(tmp_path: Path, llm: Engine) -> None:
    out, messages = tmp_path / "out", [{"role": "user", "content": "c"}]
    asked = {"tools": [{"type": "function"}], "chat_template_kwargs": {"enable_thinking": False}}
    lines = [{"messages": messages, **asked}, {"messages": messages, "continue_final_message": True}]
    assert answer(tmp_path / "in", out, *lines, seqs=1) == OK
    assert llm.asked == [asked, {"add_generation_prompt": False, "continue_final_message": True}]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"messages": []},
        {"self": 5},
        {"add_generation_prompt": False},
        {"tools": []},
        5,
        ["x"],
    ],
)
def test_names_for_the_template_that_it_may_not_have_are_the_lines_error(
    kwargs: object, tmp_path: Path, llm: Engine
) -> None:
    out, messages = tmp_path / "out", [{"role": "user", "content": "c"}]
    lines = [{"messages": messages, "chat_template_kwargs": kwargs}, {"prompt": "good"}]
    assert answer(tmp_path / "in", out, *lines) == SOME_FAILED
    bad, good = records(out)
    assert good["text"] == "GOOD" and bad["error"]["type"] == "invalid_request_error"
    assert bad["error"]["message"].startswith("chat_template_kwargs: got ") and "allowed: " in bad["error"]["message"]


def test_a_bug_of_ours_is_the_lines_error(tmp_path: Path, llm: Engine, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    deep = '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert answer(tmp_path / "in", out, {"prompt": "bug"}, deep, {"prompt": "good"}) == SOME_FAILED
    bug, nested, good = records(out)
    assert bug["error"] == {"type": "server_error", "message": "internal error: ZeroDivisionError: oh"}
    assert "line 1 of the input" in caplog.text and "Traceback" in caplog.text
    assert nested["error"]["message"] == "not a JSON object: nested too deeply"
    assert good["text"] == "GOOD"


def test_errors_stay_in_their_line(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out"
    bad: list[object] = [
        "not json",
        "[1]",
        {},
        {"prompt": "a", "messages": []},
        {"prompt": 3},
        {"messages": "hi"},
        {"messages": [{"role": "user"}]},
        {"prompt": "a", "temprature": 1},
        {"prompt": "a", "temperature": -1},
        {"prompt": "long"},
        {"prompt": "nan"},
        {"body": 3},
    ]
    assert answer(tmp_path / "in", out, *bad, {"prompt": "good"}) == SOME_FAILED
    found = records(out)
    assert all("error" in r and "text" not in r for r in found[:-1])
    assert found[-1]["text"] == "GOOD"
    assert "temprature" in found[7]["error"]["message"]
    assert found[9]["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stop": 5}, "stop: got 5, allowed: a text or a list of texts"),
        ({"stop": ["a", 5]}, "stop[1]: got 5, allowed: a text"),
        ({"temperature": "hot"}, "temperature: got 'hot', allowed: a number"),
        ({"n": None}, "n: got null, allowed: an integer"),
        ({"temprature": 1}, "temprature: no such field; did you mean temperature?"),
        ({"logit_bias": {"x": 1}}, "logit_bias: got a text as a key, allowed: an integer as a key"),
    ],
)
def test_errors_of_a_line_say_where_got_and_allowed(
    fields: dict[str, Any], says: str, tmp_path: Path, llm: Engine
) -> None:
    out = tmp_path / "out"
    assert answer(tmp_path / "in", out, {"prompt": "a", **fields}) == SOME_FAILED
    assert records(out)[0]["error"] == {"type": "invalid_request_error", "message": says}


def test_logit_bias_has_the_keys_that_json_has(tmp_path: Path, llm: Engine) -> None:
    assert answer(tmp_path / "in", tmp_path / "out", {"prompt": "a", "logit_bias": {"7": -1}}) == OK
    assert llm.params[0].logit_bias == {7: -1.0}


def test_resume_after_a_dead_engine(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out"
    lines: list[object] = [{"prompt": "a"}, "", "broken", {"prompt": "c"}, "", {"prompt": "dead"}, {"prompt": "e"}]
    with pytest.raises(EngineDead):
        answer(tmp_path / "in", out, *lines, seqs=1)
    assert len(records(out)) == 3
    with out.open("a") as file:
        file.write('{"line":6,"te')  # cut in the middle of a write
    lines[5] = {"prompt": "d"}
    before = llm.answered
    assert answer(tmp_path / "in", out, *lines, resume=True) == SOME_FAILED  # the broken line still counts
    assert [r.get("text") for r in records(out)] == ["A", None, "C", "D", "E"]
    assert [r["line"] for r in records(out)] == [1, 3, 4, 6, 7]
    assert llm.answered == before + 2


def test_an_output_is_never_overwritten_by_accident(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out"
    for strange in ('{"line": "1"}\n', '{"line": 0}\n', '{"line": 2}\n{"line": 2}\n'):
        out.write_text(strange)
        with pytest.raises(UsageError, match="not from an earlier run"):
            answer(tmp_path / "in", out, {"prompt": "a"}, resume=True)
    out.write_text("precious\n")
    for resume in (False, True):
        with pytest.raises(UsageError):
            answer(tmp_path / "in", out, {"prompt": "a"}, resume=resume)
    assert out.read_text() == "precious\n"
    with pytest.raises(UsageError):
        answer(tmp_path / "in", None, {"prompt": "a"}, resume=True)


def test_one_prompt(llm: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UsageError, match="empty"):
        run.run(["m"])
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert run.run(["m"]) == OK
    assert run.run(["m", "hello", "--temperature", "0"]) == OK
    assert [p.temperature for p in llm.params] == [0.5, 0.0]
    assert capsys.readouterr().out.count("\n") == 2
