"""Every route, on a fake AsyncLLM."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

import octavo
from octavo.config.server import ServerConfig
from octavo.server.app import build_app
from octavo.server.routes import ROUTES
from tests.fakes import EOS, TEXT, FakeAsyncLLM, answer_to
from tests.server.harness import call

CONFIG = ServerConfig()
PROMPT = "Once"
IDS = [256, *PROMPT.encode()]


def text_of(ids: list[int]) -> str:
    return bytes(i for i in ids if i < 256).decode()


def test_models() -> None:
    app = build_app(FakeAsyncLLM(model_names=("a", "b/c"), default_sampling={"temperature": 0.5}), CONFIG)
    reply = call(app, "GET", "/v1/models")
    assert reply.status == 200
    cards = reply.json()["data"]
    assert [card["id"] for card in cards] == ["a", "b/c"]
    assert cards[0]["max_model_len"] == 512
    assert cards[0]["default_sampling"] == {"temperature": 0.5}
    assert call(app, "GET", "/v1/models/b/c").json()["id"] == "b/c"
    missing = call(app, "GET", "/v1/models/z")
    assert missing.status == 404 and "'b/c'" in missing.json()["error"]["message"]


def test_small_routes() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    assert call(app, "GET", "/health").status == 200
    assert call(app, "GET", "/ping").status == 200
    assert call(app, "GET", "/version").json() == {"version": octavo.__version__}
    assert call(app, "HEAD", "/health").status == 200


def test_metrics_has_the_names() -> None:
    llm = FakeAsyncLLM()
    app = build_app(llm, CONFIG)
    call(app, "POST", "/v1/completions", {"prompt": "x"})
    text = call(app, "GET", "/metrics").body.decode()
    for name in (
        "num_requests_running",
        "kv_cache_usage_perc",
        "generation_tokens_total",
        "time_to_first_token_seconds_bucket",
    ):
        assert f"octavo:{name}{{" in text
    llm.metrics.prefix = "vllm:"
    assert "vllm:num_requests_waiting{" in call(app, "GET", "/metrics").body.decode()


class Page(HTMLParser):
    """The page as a browser without scripts shows it: rows of tables, text by element id, the script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.by_id: dict[str, str] = {}
        self.script = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id")
        if name:
            self.by_id[name] = ""
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self._open.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self._open}
        if tags & {"td", "th"}:
            self.rows[-1][-1] += data
        if "script" in tags:
            self.script += data
        for _, name in self._open:
            if name:
                self.by_id[name] += data


def page(llm: FakeAsyncLLM, config: ServerConfig = CONFIG, **options: Any) -> Page:
    return Page(call(build_app(llm, config), "GET", "/", **options).body.decode())


def test_page_is_self_contained_and_escaped() -> None:
    app = build_app(FakeAsyncLLM(model_names=('<b>&"x',)), CONFIG)
    reply = call(app, "GET", "/")
    text = reply.body.decode()
    assert reply.headers["content-type"].startswith("text/html")
    assert "&lt;b&gt;&amp;&quot;x" in text and "<b>&" not in text
    text = re.sub(r'<pre id="curl".*?</pre>', "", text, flags=re.DOTALL)  # its address is shown, not loaded
    assert "{{" not in text and "//" not in text.replace("://", "").split("<script>")[0]
    assert "http://" not in text and "https://" not in text and " src=" not in text


def test_page_has_every_endpoint() -> None:
    told = {
        (method, path)
        for method, _, paths in (row[0].partition(" ") for row in page(FakeAsyncLLM()).rows)
        if method in ("GET", "POST")
        for path in paths.split(", ")
    }
    assert told == {(r.method, r.path) for r in ROUTES if r.path != "/" and r.variable is None}


def test_page_has_model_and_limits() -> None:
    llm = FakeAsyncLLM(model_names=("m", "other"), max_model_len=2048)
    llm.facts = msgspec.structs.replace(llm.facts, threads=3, isa="avx2")
    limits = {row[0]: row[1] for row in page(llm).rows if not row[0].startswith(("GET ", "POST "))}
    assert limits == {
        "architecture": "fake",
        "longest sequence": "2,048 tokens, prompt and answer",
        "sequences in one step": str(llm.config.max_num_seqs),
        "KV blocks": "128 of 16 tokens",
        "kernel threads": "3 (avx2)",
        "chat template": "yes",
    }
    text = call(build_app(llm, CONFIG), "GET", "/").body.decode()
    assert "<h1>m</h1>" in text and f"served by Octavo {octavo.__version__}<" in text
    assert ["chat template", "no"] in page(FakeAsyncLLM(template=False)).rows


@pytest.mark.parametrize("keys", [(), ("secret",)])
def test_page_has_a_curl_line_that_works(keys: tuple[str, ...]) -> None:
    """In the page itself, before any script ran."""
    llm = FakeAsyncLLM(model_names=('it\'s <a> "name"',))
    config = ServerConfig(port=8123, root_path="/api", api_key=keys)
    headers = {"authorization": "Bearer secret"} if keys else {}
    line = page(llm, config, headers=headers).by_id["curl"]
    assert "secret" not in line
    program, url, *words = shlex.split(line.replace("\\\n", "").replace("$KEY", "secret"))
    assert (program, url) == ("curl", "http://127.0.0.1:8123/api/v1/chat/completions")
    options = list(zip(words[::2], words[1::2], strict=True))
    sent = {name.lower(): value for flag, text in options if flag == "-H" for name, _, value in [text.partition(": ")]}
    assert sent == {"content-type": "application/json"} | headers
    (data,) = [text for flag, text in options if flag == "-d"]
    reply = call(build_app(llm, config), "POST", "/api/v1/chat/completions", json.loads(data), headers=sent)
    assert reply.status == 200 and reply.json()["model"] == llm.model_names[0]


def test_page_has_a_chat_box() -> None:
    """Its parts, and a script that finds them and asks for a stream. (No browser runs it here.)"""
    found = page(FakeAsyncLLM())
    used = set(re.findall(r'at\("(\w+)"\)', found.script))
    assert used == {"talk", "form", "say", "send", "clear", "speed", "curl"} and used <= found.by_id.keys()
    assert 'fetch(base + "/v1/chat/completions"' in found.script and "stream: true" in found.script
    assert 'addEventListener("submit"' in found.script


def test_completion() -> None:
    llm = FakeAsyncLLM()
    reply = call(
        build_app(llm, CONFIG), "POST", "/v1/completions", {"model": "fake", "prompt": PROMPT, "max_tokens": 200}
    )
    assert reply.status == 200
    body = reply.json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-") and body["model"] == "fake"
    [choice] = body["choices"]
    assert choice["text"] == text_of(answer_to(IDS)) and choice["text"].endswith(TEXT)
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] is None and choice["logprobs"] is None
    made = len(answer_to(IDS))
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": made,
        "total_tokens": 5 + made,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert llm.open == set() and llm.aborted == []


def test_completion_default_is_sixteen_tokens() -> None:
    body = call(build_app(FakeAsyncLLM(), CONFIG), "POST", "/v1/completions", {"prompt": PROMPT}).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
    ],
)
def test_prompt_forms(prompt: object, texts: list[object]) -> None:
    llm = FakeAsyncLLM()
    body = call(build_app(llm, CONFIG), "POST", "/v1/completions", {"prompt": prompt, "n": 2, "max_tokens": 5}).json()
    assert [seen[0] for seen in llm.seen] == texts
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(texts)))
    assert body["choices"][1]["text"].startswith("[1]")


def test_echo() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    plain = call(app, "POST", "/v1/completions", {"prompt": PROMPT}).json()["choices"][0]["text"]
    for prompt in (PROMPT, list(PROMPT.encode())):
        ask = {"prompt": prompt, "echo": True, "logprobs": 2}
        choice = call(app, "POST", "/v1/completions", ask).json()["choices"][0]
        assert choice["text"].startswith(PROMPT)
        scores = choice["logprobs"]
        count = len(scores["tokens"])
        assert {len(values) for values in scores.values()} == {count}
        assert scores["token_logprobs"][0] is None and scores["token_logprobs"][-1] == -0.5
        stream = call(app, "POST", "/v1/completions", {**ask, "stream": True}).events[:-1]
        assert "".join(e["choices"][0]["text"] for e in stream) == choice["text"]
        for name, values in scores.items():
            assert [v for e in stream for v in e["choices"][0]["logprobs"][name]] == values
    assert choice["text"] != plain
    nothing = call(app, "POST", "/v1/completions", {"prompt": PROMPT, "echo": True, "max_tokens": 0}).json()
    assert nothing["choices"][0]["text"] == PROMPT and nothing["usage"]["completion_tokens"] == 0


def test_chat() -> None:
    llm = FakeAsyncLLM()
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    body = call(build_app(llm, CONFIG), "POST", "/v1/chat/completions", {"messages": messages}).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    message = body["choices"][0]["message"]
    assert message["role"] == "assistant" and message["content"].endswith(TEXT)
    ids, params, _, _ = llm.seen[0]
    assert ids == llm.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}])
    assert params.max_tokens is None


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_chat_template_arguments() -> None:
    """What a body says about rendering reaches the template; a final message that goes on opens no new turn."""
    llm = FakeAsyncLLM()
    app = build_app(llm, CONFIG)
    call_made = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call_made], "reasoning_content": "hm"},
        {"role": "tool", "content": "12", "tool_call_id": "c1"},
    ]
    for given, want in (
        ({}, (True, False, None)),
        ({"tools": [WEATHER]}, (True, False, [WEATHER])),
        ({"tools": [WEATHER], "tool_choice": "none"}, (True, False, None)),
        ({"continue_final_message": True}, (False, True, None)),
        ({"add_generation_prompt": False}, (False, False, None)),
    ):
        assert call(app, "POST", "/v1/chat/completions", {"messages": messages, **given}).status == 200
        rendered, ask = llm.rendered[-1]
        assert (ask.add_generation_prompt, ask.continue_final_message, ask.tools) == want
        assert rendered[1]["tool_calls"] == [call_made] and rendered[1]["reasoning_content"] == "hm"
        assert rendered[2] == {"role": "tool", "content": "12", "tool_call_id": "c1"}
    assert call(app, "POST", "/tokenize", {"messages": messages, "tools": [WEATHER]}).status == 200
    assert llm.rendered[-1][1].tools == [WEATHER]
    more = {"enable_thinking": False, "builtin_tools": []}
    assert call(app, "POST", "/tokenize", {"messages": messages, "chat_template_kwargs": more}).status == 200
    assert llm.rendered[-1][1].chat_template_kwargs == more


def test_chat_parameters_reach_the_engine() -> None:
    llm = FakeAsyncLLM(default_sampling={"temperature": 0.6, "top_p": 0.9}, policy="priority")
    given = {
        "temperature": 0, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.1, "seed": 7, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": True,
        "include_stop_str_in_output": True, "min_tokens": 2, "logit_bias": {"5": 1.5}, "skip_special_tokens": False,
        "max_completion_tokens": 9, "logprobs": True, "top_logprobs": 3, "n": 2, "prompt_logprobs": 1,
    }  # fmt: skip
    data = {"messages": [{"role": "user", "content": "x"}], **given, "priority": -3, "cache_salt": "s"}
    assert call(build_app(llm, CONFIG), "POST", "/v1/chat/completions", data).status == 200
    _, params, priority, salt = llm.seen[0]
    assert (priority, salt) == (-3, "s")
    assert params.temperature == 0 and params.top_p == 0.9 and params.logit_bias == {5: 1.5}
    assert params.stop == ("a", "b") and params.max_tokens == 9 and params.logprobs == 3
    for name in ("top_k", "min_p", "repetition_penalty", "seed", "ignore_eos", "min_tokens", "n", "prompt_logprobs"):
        assert getattr(params, name) == given[name]


def test_chat_logprobs_have_exact_counts_and_no_infinity() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    data = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 4, "prompt_logprobs": 2}
    reply = call(app, "POST", "/v1/chat/completions", data)
    body = json.loads(reply.body, parse_constant=lambda name: pytest.fail(name))
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == body["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 4 for entry in content)
    assert content[0]["top_logprobs"][-1]["logprob"] == -9999.0
    assert (
        b"".join(bytes(entry["bytes"]) for entry in content[:-1]).decode() == body["choices"][0]["message"]["content"]
    )
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"] and body["prompt_logprobs"][0] is None
    del data["top_logprobs"], data["prompt_logprobs"]
    content = call(app, "POST", "/v1/chat/completions", data).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"] == [] and content[0]["logprob"] == -0.5


def test_completion_top_logprobs_keep_partial_characters_apart() -> None:
    llm = FakeAsyncLLM(answer=lambda _: [0xE4, 0xB8, 0x96, EOS])
    scores = call(build_app(llm, CONFIG), "POST", "/v1/completions", {"prompt": "x", "logprobs": 5}).json()["choices"][
        0
    ]["logprobs"]
    assert scores["tokens"][0] == "bytes:\\xe4"
    assert [len(top) for top in scores["top_logprobs"]] == [5, 5, 5, 5]


def test_tokenize_and_back() -> None:
    llm = FakeAsyncLLM()
    app = build_app(llm, CONFIG)
    body = call(app, "POST", "/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert body["tokens"] == [256, *"hé".encode()] and body["count"] == 4 and body["max_model_len"] == 512
    assert body["token_strs"] == ["<bos>", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert call(app, "POST", "/tokenize", {"prompt": "hé", "add_special_tokens": False}).json()["tokens"] == [
        *"hé".encode()
    ]
    messages = [{"role": "user", "content": "x"}]
    assert call(app, "POST", "/tokenize", {"messages": messages}).json()["tokens"] == llm.render_chat(messages)
    assert call(app, "POST", "/detokenize", {"tokens": [104, 105]}).json() == {"prompt": "hi"}
    assert call(app, "POST", "/detokenize", {"tokens": []}).json() == {"prompt": ""}
    long = "word " * 2000
    assert call(app, "POST", "/tokenize", {"prompt": long}).json()["count"] == len(long) + 1


def test_scores_of_a_long_prompt() -> None:
    app = build_app(FakeAsyncLLM(), CONFIG)
    data = {"prompt": [7] * 400, "max_tokens": 2, "logprobs": 2, "echo": True, "prompt_logprobs": 3}
    choice = call(app, "POST", "/v1/completions", data).json()["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == 402 and len(choice["prompt_logprobs"]) == 400
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [3] * 399


def test_root_path() -> None:
    app = build_app(FakeAsyncLLM(), ServerConfig(root_path="/llm"))
    assert call(app, "GET", "/llm/health").status == 200
    assert call(app, "GET", "/health").status == 200
    assert call(app, "GET", "/llmhealth").status == 404


def test_cors_only_where_asked() -> None:
    asked = {"origin": "http://a", "access-control-request-method": "POST"}
    closed = call(build_app(FakeAsyncLLM(), CONFIG), "OPTIONS", "/v1/completions", headers=asked)
    assert closed.status == 405 and "access-control-allow-origin" not in closed.headers
    app = build_app(FakeAsyncLLM(), ServerConfig(allowed_origins=("http://a",), api_key=("k",)))
    assert call(app, "OPTIONS", "/v1/completions", headers=asked).headers["access-control-allow-origin"] == "http://a"
    assert (
        call(app, "GET", "/health", headers={"origin": "http://b"}).headers.get("access-control-allow-origin") is None
    )
