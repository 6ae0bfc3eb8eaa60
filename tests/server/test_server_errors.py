"""Every refusal: status, OpenAI's shape, the field's name, and nothing of the inside."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from octavo.config.server import ServerConfig
from octavo.server.app import App, build_app
from octavo.server.routes import ROUTES, Router
from tests.fakes import FakeAsyncLLM
from tests.server.harness import ask, call, error_of

CONFIG = ServerConfig()
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    # path, body, param, words of the message
    (TEXT, {}, "prompt", "required"),
    (TEXT, {"prompt": 5}, "prompt", "got 5, allowed: a text or a list of texts, integers or lists of integers"),
    (TEXT, {"prompt": []}, "prompt", "empty list"),
    (TEXT, {"prompt": [[]]}, "prompt", "no token ids"),
    (TEXT, {"prompt": ["a", 5]}, "prompt", "only"),
    (TEXT, {"prompt": [1, "a"]}, "prompt", "only"),
    (TEXT, {"prompt": [-1]}, "prompt", "got token id -1, allowed: 0 to 259"),
    (TEXT, {"prompt": [260]}, "prompt", "got token id 260"),
    (TEXT, {"prompt": [2**63]}, "prompt", "got 9223372036854775808"),
    (TEXT, {"prompt": [True]}, "prompt[0]", "got true, allowed: a text, an integer or a list of integers"),
    (TEXT, {"prompt": ["a"] * 257}, "prompt", "got 257 prompts, allowed: at most 256"),
    (TEXT, {"prompt": ["a"] * 20, "n": 100}, "n", "1024"),
    (TEXT, {"prompt": "a", "max_token": 5}, "max_token", "did you mean 'max_tokens'?"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    (TEXT, {"prompt": "a", "best_of": 2}, "best_of", "not supported"),
    (TEXT, {"prompt": "a", "best_of": True}, "best_of", "not supported"),
    (TEXT, {"prompt": "a", "messages": HI}, "messages", "no such field"),
    (TEXT, {"prompt": "a", "temperature": -1}, "temperature", "got -1"),
    (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature", "got 'hot', allowed: a number"),
    (TEXT, {"prompt": "a", "temperature": True}, "temperature", "got true, allowed: a number"),
    (TEXT, {"prompt": "a", "temperature": 10**400}, "temperature", "got a number beyond 64 bits, allowed: a number"),
    (TEXT, {"prompt": "a", "suffix": None, "n": 1.5}, "n", "got 1.5, allowed: an integer"),
    (TEXT, {"prompt": "a", "stop": 5}, "stop", "got 5, allowed: a text or a list of texts"),
    (TEXT, {"prompt": "a", "metadata": {"a": 1}}, "metadata", "got an integer as a value, allowed: a text"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens", "got 0"),
    (TEXT, {"prompt": "a", "max_tokens": True}, "max_tokens", "got true, allowed: an integer"),
    (TEXT, {"prompt": "a", "n": 0}, "n", "got 0"),
    (TEXT, {"prompt": "a", "n": 129}, "n", "got 129"),
    (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs", "0 to 20"),
    (TEXT, {"prompt": "a", "stop": ["x"] * 17}, "stop", "at most 16"),
    (TEXT, {"prompt": "a", "stop": "x" * 300}, "stop", "256"),
    (TEXT, {"prompt": "a", "stop": ""}, "stop", "1 to 256"),
    (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "got a text as a key, allowed: an integer"),
    (TEXT, {"prompt": "a", "logit_bias": {"1": 1000}}, "logit_bias", "-100 to 100"),
    (TEXT, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    (TEXT, {"prompt": "a", "seed": 2**80}, "seed", ""),
    (TEXT, {"prompt": "a", "priority": 2**40}, "priority", ""),
    (TEXT, {"prompt": "a", "priority": 1}, "priority", "--scheduling-policy"),
    (TEXT, {"prompt": "a", "cache_salt": ""}, "cache_salt", "1 to 256"),
    (TEXT, {"prompt": "a", "stream_options": {}}, "stream_options", "stream"),
    (TEXT, {"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x", "no such field"),
    (TEXT, {"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "without stream"),
    (TEXT, {"prompt": "a" * 600}, "prompt", "got 601 tokens, allowed: up to 511"),
    (CHAT, {}, "messages", "required"),
    (CHAT, {"messages": []}, "messages", "at least one"),
    (CHAT, {"messages": HI * 1025}, "messages", "at most 1024"),
    (CHAT, {"messages": HI, "promt": "x"}, "promt", "no such field"),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format", "not supported"),
    (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools[0]", "allowed"),
    (CHAT, {"messages": HI, "tools": [{}] * 129}, "tools", "at most 128"),
    (CHAT, {"messages": HI, "tool_choice": {"type": "function"}}, "tool_choice", "not supported"),
    (CHAT, {"messages": HI, "tool_choice": "required"}, "tool_choice", "not supported"),
    (CHAT, {"messages": HI, "max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "one of them"),
    (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role",
     "got 'robot', allowed: 'assistant', 'developer', 'system', 'tool' or 'user'"),
    (CHAT, {"messages": 5}, "messages", "got 5, allowed: a list of objects"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content",
     "got 5, allowed: a text or a list of objects"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
     "messages[0].content[0].text", "got null, allowed: a text"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
     "messages[0].tool_calls[0]", "got 1, allowed: an object"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "refusal": "no"}]}, "messages[0].refusal", "not supported"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour", "no such field"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "required"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
     "messages[0].content[0].type", "got 'image_url', allowed: 'text'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"image_url": {"url": "http://x"}, "type": "image_url"}]}]},
     "messages[0].content[0].type", "got 'image_url', allowed: 'text'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "image_url": {}}]}]},
     "messages[0].content[0].image_url", "no such field"),
    (CHAT, {"messages": HI, "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", "'tokenize'"),
    (CHAT, {"messages": HI, "chat_template_kwargs": {"return_dict": 1}}, "chat_template_kwargs", "'return_dict'"),
    (CHAT, {"messages": HI, "chat_template": "{{ x }}"}, "chat_template", "not supported"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 9000}]}, "prompt", "up to 511"),
    ("/tokenize", {}, "prompt", "either"),
    ("/tokenize", {"prompt": "a", "messages": HI}, "prompt", "either"),
    ("/detokenize", {"tokens": [999]}, "tokens", "0 to 259"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "data", "param", "words"), BAD)
def test_bad_requests_name_the_field(path: str, data: dict[str, Any], param: str, words: str) -> None:
    llm = FakeAsyncLLM()
    error = error_of(call(build_app(llm, CONFIG), "POST", path, data), 400)
    assert error["param"] == param and words in error["message"]
    assert error["type"] == "invalid_request_error" and len(error["message"]) <= 600
    assert not llm.open


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize("name", ["messages", "self", "add_generation_prompt", "bos_token", "a b"])
def test_names_for_the_template_cannot_be_the_renderings_own(path: str, name: str) -> None:
    data = {"messages": HI, "chat_template_kwargs": {"enable_thinking": True, name: []}}
    error = error_of(call(build_app(FakeAsyncLLM(), CONFIG), "POST", path, data), 400)
    assert error["param"] == "chat_template_kwargs" and f"got {name!r}, allowed: names" in error["message"]


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "parallel_tool_calls": True},
        {"best_of": 1, "length_penalty": 1.0, "service_tier": "auto", "store": False, "logits_processors": None},
        {"temperature": None, "stop": None, "max_tokens": None, "stream_options": None, "suffix": None},
    ],
)
def test_fields_that_ask_for_nothing_are_accepted(extra: dict[str, Any]) -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    assert call(app, "POST", CHAT, {"messages": HI, **extra}).status == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"prompt": "\xff"}',
        b'{"prompt":"a"}x',
        b'{"prompt": "a", "n": %s}' % (b"9" * 6000),
        b'{"prompt": "a", "n": "x", "seed": NaN}',
        b'{"prompt": "a", "suffix": NaN}',
        b"{'a':1}",
    ],
)
def test_malformed_json(raw: bytes) -> None:
    error_of(call(build_app(FakeAsyncLLM(), CONFIG), "POST", TEXT, raw=raw), 400)


@pytest.mark.parametrize("name", ["prompt", "chat_template_kwargs", "zzz", "logit_bias", "tools"])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_deep_json(name: str, pair: str) -> None:
    opening = "[" if pair == "[]" else '{"a":'
    raw = b'{"messages":[{"role":"user","content":"x"}],"%s":%s1' % (name.encode(), opening.encode() * 50_000)
    raw += (pair[1] * 50_000 + "}").encode()
    error_of(call(build_app(FakeAsyncLLM(), CONFIG), "POST", CHAT, raw=raw), 400)


def test_free_form_values_are_bounded() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    for value, words in ((deep, "deep"), ([0] * 20_000, "values")):
        data = {"messages": HI, "chat_template_kwargs": {"a": value}}
        assert words in error_of(call(app, "POST", CHAT, data), 400)["message"]


def test_body_limits() -> None:
    app = build_app(FakeAsyncLLM(), ServerConfig(max_body_bytes=2000))
    error_of(call(app, "POST", TEXT, raw=b" " * 2001), 413)
    error_of(call(app, "POST", TEXT, raw=b"", headers={"content-length": "99999999999"}), 413)
    assert call(app, "POST", TEXT, raw=b'{"prompt":"a"}' + b" " * 1900).status == 200


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "", "application/json5"])
def test_other_media_types_are_refused(media: str) -> None:
    reply = call(build_app(FakeAsyncLLM(), CONFIG), "POST", TEXT, {"prompt": "a"}, headers={"content-type": media})
    assert error_of(reply, 415)["param"] == "content-type"


def test_media_type_parameters_are_fine() -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert call(build_app(FakeAsyncLLM(), CONFIG), "POST", TEXT, {"prompt": "a"}, headers=headers).status == 200


def test_methods_and_paths() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    router = Router(ROUTES)
    for path in {route.path for route in ROUTES}:
        methods = router.at(path)
        assert methods, path
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X" * 100):
            if method not in methods:
                reply = call(app, method, path, raw=b"{}")
                error_of(reply, 405)
                assert set(methods) <= set(reply.headers["allow"].split(", "))
    for path in ("/v1", "/v1/", "/v1/models/", "/admin", "//", "/v1/completions/", "/V1/completions", "/health/"):
        error_of(call(app, "GET", path), 404)


def test_wrong_model_lists_ours() -> None:
    app = build_app(FakeAsyncLLM(model_names=("a", "b")), CONFIG)
    for path, data in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": HI}), ("/tokenize", {"prompt": "x"})):
        message = error_of(call(app, "POST", path, {**data, "model": "gpt-4"}), 404)["message"]
        assert "'gpt-4'" in message and "'a', 'b'" in message
        assert call(app, "POST", path, {**data, "model": "b"}).json().get("model", "b") == "b"


def test_no_chat_template() -> None:
    app = build_app(FakeAsyncLLM(template=False), CONFIG)
    for path in (CHAT, "/tokenize"):
        assert "no chat template" in error_of(call(app, "POST", path, {"messages": HI}), 400)["message"]


def test_full_queue() -> None:
    async def run() -> None:
        app = build_app(FakeAsyncLLM(max_queue=1, delay=0.01), CONFIG)
        first = asyncio.ensure_future(ask(app, "POST", TEXT, {"prompt": "x", "stream": True}))
        await asyncio.sleep(0.02)
        for stream in (False, True):
            refused = await ask(app, "POST", TEXT, {"prompt": "x", "stream": stream})
            assert not first.done(), "refused at once, not after a wait for room"
            assert error_of(refused, 503)["code"] == "queue_full" and refused.headers["retry-after"] == "2"
        assert (await first).status == 200

    asyncio.run(run())


def test_too_many_open_requests() -> None:
    async def run() -> None:
        llm = FakeAsyncLLM(delay=0.01)
        app = App(llm, ServerConfig(max_open_requests=3))
        replies = await asyncio.gather(*(ask(app, "POST", TEXT, {"prompt": "x"}) for _ in range(10)))
        assert sorted(r.status for r in replies) == [200] * 3 + [503] * 7
        assert all("retry-after" in r.headers for r in replies if r.status == 503)
        assert llm.metrics.rejections.by_label == {"open_requests": 7}

    asyncio.run(run())


def test_loading() -> None:
    app = App(None, CONFIG)
    for method, path in (
        ("GET", "/health"),
        ("GET", "/ping"),
        ("POST", TEXT),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
    ):
        reply = call(app, method, path, {"prompt": "x"})
        assert error_of(reply, 503)["code"] == "loading" and reply.headers["retry-after"] == "1"
    assert call(app, "GET", "/").status == 200
    app.attach(FakeAsyncLLM())
    assert call(app, "GET", "/health").status == 200


def test_bugs_of_ours_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def explode(_: object) -> list[int]:
        raise RuntimeError("/home/somebody/secret.py at 0x7f00")

    app = build_app(FakeAsyncLLM(answer=explode), CONFIG)
    with caplog.at_level(logging.DEBUG):
        reply = call(app, "POST", TEXT, {"prompt": "canary-prompt", "stream": True})
    error = error_of(reply, 500)
    assert "secret" not in reply.body.decode() and error["code"] == "internal_error"
    assert "secret.py" in caplog.text and "canary-prompt" not in caplog.text


def test_prompts_and_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = build_app(FakeAsyncLLM(), ServerConfig(api_key=("canary-key",), access_log=True, log_level="debug"))
    good = {"authorization": "Bearer canary-key"}
    with caplog.at_level(logging.DEBUG):
        call(app, "POST", TEXT, {"prompt": "canary-prompt"}, headers=good)
        call(app, "POST", CHAT, {"messages": [{"role": "user", "content": "canary-prompt"}]}, headers=good)
        call(app, "POST", TEXT, {"prompt": "canary-prompt", "canary-field": 1}, headers=good)
        call(app, "POST", TEXT, {"prompt": "x"}, headers={"authorization": "Bearer canary-wrong"})
        call(app, "GET", "/x\n[forged]\x1b[31m" + "y" * 900, headers=good)
    assert "POST /v1/completions 200" in caplog.text and "canary" not in caplog.text
    assert "\x1b" not in caplog.text and "\n[forged]" not in caplog.text
