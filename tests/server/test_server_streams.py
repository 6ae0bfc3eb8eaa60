"""Streams: the same text as whole answers, cut anywhere, and ended properly."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import pytest

from octavo.config.server import ServerConfig
from octavo.server.app import App, build_app
from tests.fakes import EOS, TEXT, FakeAsyncLLM
from tests.server.harness import ask, call

CONFIG = ServerConfig()
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def chat_text(events: list[Any]) -> str:
    return "".join(e["choices"][0]["delta"].get("content", "") for e in events if e != "[DONE]" and e["choices"])


def test_chat_stream_equals_whole() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    whole = call(app, "POST", "/v1/chat/completions", CHAT).json()
    reply = call(
        app, "POST", "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, usage, done = reply.events
    assert done == "[DONE]" and usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert chat_text(events) == whole["choices"][0]["message"]["content"]
    assert len(events) == whole["usage"]["completion_tokens"], "one event a token"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in e["choices"][0]["delta"] for e in events[1:])
    assert all(e["usage"] is None and e["object"] == "chat.completion.chunk" for e in events)
    assert [e["choices"][0]["finish_reason"] for e in events[-2:]] == [None, "stop"]
    assert len({(e["id"], e["created"], e["model"]) for e in events}) == 1
    assert len(reply.chunks) == len(events), "what ends a stream travels with the last token"


def test_no_usage_unless_asked() -> None:
    events = call(build_app(FakeAsyncLLM(), CONFIG), "POST", "/v1/chat/completions", {**CHAT, "stream": True}).events
    assert not any("usage" in e for e in events[:-1])


def test_nothing_is_sent_before_the_first_token() -> None:
    async def run() -> None:
        llm = FakeAsyncLLM(first_delay=0.1)
        reply = await ask(
            build_app(llm, CONFIG), "POST", "/v1/completions", {"prompt": "x", "stream": True}, leave_at=0.05
        )
        assert reply.status == 0 and not reply.chunks
        assert not llm.open

    asyncio.run(run())


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", ["forty", "世界", "o, 世", "👩‍👩", ["zzz", "answer is f"], "Grüße, 世界! 👩‍👩‍👧 The"])
def test_stop_strings_over_token_borders(stop: str | list[str], include: bool) -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    data = {"prompt": "x", "max_tokens": 200, "stop": stop, "include_stop_str_in_output": include}
    whole = call(app, "POST", "/v1/completions", data).json()
    *events, usage, _ = call(
        app, "POST", "/v1/completions", {**data, "stream": True, "stream_options": {"include_usage": True}}
    ).events
    text = "".join(e["choices"][0]["text"] for e in events)
    choice = whole["choices"][0]
    assert text == choice["text"] and usage["usage"] == whole["usage"]
    assert choice["finish_reason"] == events[-1]["choices"][0]["finish_reason"]
    stops = [stop] if isinstance(stop, str) else stop
    hit = [s for s in stops if s in TEXT]
    if hit:
        assert (
            choice["finish_reason"] == "stop"
            and choice["stop_reason"] == hit[0] == events[-1]["choices"][0]["stop_reason"]
        )
        assert choice["text"].endswith(hit[0]) is include


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 family", "漢字かな交じり文", "a\u0301e\u0308", '\u2028\x00\n\r\t"\\', "𝔘𝔫𝔦"]
)
def test_utf8_in_deltas(text: str) -> None:
    app = build_app(FakeAsyncLLM(answer=lambda _: [*text.encode(), EOS]), CONFIG)
    events = call(app, "POST", "/v1/chat/completions", {**CHAT, "stream": True}).events
    assert chat_text(events) == text
    assert not any(
        unicodedata.lookup("REPLACEMENT CHARACTER") in e["choices"][0]["delta"]["content"] for e in events[:-1]
    )


def test_many_prompts_and_answers_in_one_stream() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    data = {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 12}
    whole = call(app, "POST", "/v1/completions", data).json()
    *events, usage, done = call(
        app, "POST", "/v1/completions", {**data, "stream": True, "stream_options": {"include_usage": True}}
    ).events
    assert done == "[DONE]" and usage["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * 11 + ["length"]


def test_stream_logprobs() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    data = {**CHAT, "logprobs": True, "top_logprobs": 2, "max_tokens": 9}
    whole = call(app, "POST", "/v1/chat/completions", data).json()["choices"][0]["logprobs"]["content"]
    events = call(app, "POST", "/v1/chat/completions", {**data, "stream": True}).events[:-1]
    assert [x for e in events for x in e["choices"][0]["logprobs"]["content"]] == whole
    data = {"prompt": "x", "logprobs": 2, "max_tokens": 9}
    scores = call(app, "POST", "/v1/completions", data).json()["choices"][0]["logprobs"]
    events = call(app, "POST", "/v1/completions", {**data, "stream": True}).events[:-1]
    for name, values in scores.items():
        assert [x for e in events for x in e["choices"][0]["logprobs"][name]] == values


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_step_before_the_first_token_has_its_status(stream: bool, n: int) -> None:
    app = build_app(FakeAsyncLLM(fail_at=0), CONFIG)
    reply = call(app, "POST", "/v1/chat/completions", {**CHAT, "stream": stream, "n": n})
    assert reply.status == 500 and reply.json()["error"]["code"] == "step_failed"
    assert b"/secret" not in reply.body


def test_a_failure_after_the_stream_began_is_its_last_event() -> None:
    llm = FakeAsyncLLM(fail_at=3)
    reply = call(build_app(llm, CONFIG), "POST", "/v1/chat/completions", {**CHAT, "stream": True})
    assert reply.status == 200 and reply.complete
    assert len(reply.events) == 4 and reply.events[-1]["error"]["code"] == "step_failed"
    assert b"/secret" not in reply.body and not llm.open


def test_one_failing_prompt_ends_the_others() -> None:
    llm = FakeAsyncLLM(max_model_len=64)
    reply = call(build_app(llm, CONFIG), "POST", "/v1/completions", {"prompt": ["a", "b" * 100, "c"], "stream": True})
    assert (
        reply.json()["error"]["code"] == "context_length_exceeded"
        if reply.status == 400
        else "error" in reply.events[-1]
    )
    assert not llm.open


def test_engine_death_ends_streams() -> None:
    async def run() -> None:
        llm = FakeAsyncLLM(delay=0.01)
        app = build_app(llm, CONFIG)
        asyncio.get_running_loop().call_later(0.1, setattr, llm, "dead", True)
        streaming, whole = await asyncio.gather(
            ask(app, "POST", "/v1/chat/completions", {**CHAT, "stream": True}),
            ask(app, "POST", "/v1/chat/completions", CHAT),
        )
        assert streaming.complete and streaming.events[-1]["error"]["code"] == "engine_dead"
        assert whole.status == 503 and whole.json()["error"]["code"] == "engine_dead"
        for path in ("/health", "/ping"):
            health = await ask(app, "GET", path)
            assert health.status == 503 and b"/secret" not in health.body
        assert (await ask(app, "POST", "/v1/completions", {"prompt": "x"})).status == 503

    asyncio.run(run())


def test_shutdown_ends_open_requests_with_a_reason() -> None:
    async def run() -> None:
        llm = FakeAsyncLLM(delay=0.02)
        app = App(llm, CONFIG)
        asyncio.get_running_loop().call_later(0.1, app.end_all)
        streaming, whole = await asyncio.gather(
            ask(app, "POST", "/v1/chat/completions", {**CHAT, "stream": True}),
            ask(app, "POST", "/v1/chat/completions", CHAT),
        )
        assert streaming.events[-1]["error"]["code"] == "shutting_down"
        assert whole.status == 503 and whole.json()["error"]["code"] == "shutting_down"
        assert not llm.open and app.open_requests == 0
        app.draining = True
        late = await ask(app, "POST", "/v1/chat/completions", CHAT)
        assert late.status == 503 and late.headers["connection"] == "close" and late.headers["retry-after"] == "1"
        assert (await ask(app, "GET", "/health")).status == 503

    asyncio.run(run())


def test_disconnects_leak_nothing() -> None:
    """R12: streaming or not, n > 1, several prompts, before the first token and in the middle."""

    async def run() -> None:
        llm = FakeAsyncLLM(delay=0.002, first_delay=0.004)
        app = App(llm, CONFIG)
        bodies = [
            ("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 100}),
            ("/v1/completions", {"prompt": ["x", "y"], "stream": True, "n": 2, "max_tokens": 100}),
            ("/v1/completions", {"prompt": ["x", "y"], "n": 2, "max_tokens": 100}),
            ("/v1/chat/completions", {**CHAT, "stream": True}),
            ("/v1/chat/completions", {**CHAT, "n": 3}),
        ]
        works = []
        for index in range(500):
            path, data = bodies[index % len(bodies)]
            how = (
                {"leave_after": 1 + index % 7} if data.get("stream") and index % 2 else {"leave_at": index % 11 * 0.002}
            )
            works.append(ask(app, "POST", path, data, **how))
        await asyncio.gather(*works)
        assert not llm.open and app.open_requests == 0 and not app._work
        assert len(llm.aborted) > 300

    asyncio.run(run())
