"""One request from the socket to the kernels and back: `octavo serve` on SmolLM2 against `LLM` in this process.

Both run the same kernels, so text, tokens and log-probabilities are compared with `==`; with the oracle, which computes
in float32, ids are compared as far as its choice is clear.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.bench.process import Running, free_port, running
from octavo.server.openai.logprobs import token_str
from octavo.types import Completion
from tests.child import child_env
from tests.models_at_hand import smollm2

pytestmark = pytest.mark.model
pytest.importorskip("octavo._native", reason="the native module is not built")

NAME = "real"
ORACLE = json.loads((Path(__file__).parents[1] / "data" / "smollm2-135m-instruct-q4_1.json").read_text())
PROMPTS: dict[str, dict[str, Any]] = {p["name"]: p for p in ORACLE["prompts"]}
OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 2048, "num_kv_blocks": 400}
CLEAR = 1.0
"""Nats between the oracle's first and second choice that the format as served does not turn round."""


@dataclass
class Heard:
    """What came over the wire."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    tops: list[dict[str, float]] = field(default_factory=list)
    finish: str | None = None
    cached: int = 0
    events: list[float] = field(default_factory=list)
    """When each event of a stream came, in seconds of time.monotonic()."""

    def take(self, reply: dict[str, Any]) -> None:
        for choice in reply["choices"]:
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
            if scores := choice.get("logprobs"):
                self.tokens += scores["tokens"]
                self.scores += scores["token_logprobs"]
                self.tops += scores["top_logprobs"]
        if usage := reply.get("usage"):
            self.cached = usage["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    port = free_port()
    flags = [word for key, value in OPTIONS.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "octavo", "serve", str(smollm2()), "--port", str(port)]
    with running([*command, "--served-model-name", NAME, *flags], port=port, model=NAME, env=child_env()) as started:
        yield started


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(smollm2()), **OPTIONS) as made:
        yield made


def post(server: Running, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        server.url + path, json.dumps({"model": NAME, **body}).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=120)


def ask(server: Running, prompt: str | list[int], *, tokens: int, stream: bool = False) -> Heard:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2, "stream": stream}
    heard = Heard()
    if not stream:
        with post(server, "/v1/completions", body) as response:
            heard.take(json.load(response))
        return heard
    with post(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}}) as response:
        for line in response:
            if line.startswith(b"data: {"):
                heard.events.append(time.monotonic())
                heard.take(json.loads(line[6:]))
    return heard


def in_process(llm: LLM, prompt: str | list[int], *, tokens: int) -> Completion:
    """The answer alone, on an empty cache."""
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=tokens, logprobs=2)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return output.outputs[0]


def same(heard: Heard, truth: Completion, llm: LLM) -> None:
    words = [token_str(llm.tokenizer, i)[0] for i in truth.token_ids]
    assert heard.text == truth.text and heard.finish == truth.finish_reason
    assert heard.tokens == words
    assert truth.logprobs is not None
    assert heard.scores == [entry.chosen.logprob for entry in truth.logprobs]
    assert heard.tops == [
        {token_str(llm.tokenizer, t.token)[0]: t.logprob for t in entry.top} for entry in truth.logprobs
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["raw_continuation", "arithmetic", "emoji_zwj"])
def test_one_request(server: Running, llm: LLM, name: str, stream: bool) -> None:
    prompt = PROMPTS[name]["text"] if name == "raw_continuation" else PROMPTS[name]["prompt_ids"]
    truth = in_process(llm, prompt, tokens=24)
    assert len(truth.token_ids) > 5
    heard = ask(server, prompt, tokens=24, stream=stream)
    same(heard, truth, llm)
    assert not stream or len(heard.events) > 5, "it came in pieces"


@pytest.mark.parametrize("scores", [None, 2], ids=["text", "scores"])
def test_one_event_a_token(server: Running, scores: int | None) -> None:
    """For a client that reads at once. Where others take its core it reads late, so one stream of several must do."""
    body = {"prompt": PROMPTS["code_chat"]["prompt_ids"], "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "logprobs": scores}
    found: list[tuple[int, int]] = []
    while (40, 40) not in found and len(found) < 6:
        with post(server, "/v1/completions", body) as response:
            *events, usage = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
        assert all(len(e["choices"]) == 1 for e in events) and not usage["choices"]
        found.append((len(events), usage["usage"]["completion_tokens"]))
    assert found[-1] == (40, 40), "events, tokens of each stream"


def test_two_at_once(server: Running, llm: LLM) -> None:
    prompts = [PROMPTS[name]["prompt_ids"] for name in ("code_chat", "json_out")]
    truths = [in_process(llm, prompt, tokens=80) for prompt in prompts]
    heard: list[Heard | None] = [None, None]

    def run(i: int) -> None:
        heard[i] = ask(server, prompts[i], tokens=80, stream=True)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = heard
    assert first is not None and second is not None
    assert first.events[0] < second.events[-1] and second.events[0] < first.events[-1], "they ran side by side"
    same(first, truths[0], llm)
    same(second, truths[1], llm)


def test_a_long_prefix_that_was_read_before(server: Running, llm: LLM) -> None:
    """Another question behind the same document, then the first one again."""
    one, other = (PROMPTS[name]["prompt_ids"] for name in ("long_chat", "long_chat_shared_prefix"))
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    assert common > 1000
    truths = {id(prompt): in_process(llm, prompt, tokens=12) for prompt in (one, other)}
    whole = (len(one) - 1) // 16 * 16
    for prompt, least, most in ((one, 0, 64), (other, common // 16 * 16, common), (one, whole, whole)):
        heard = ask(server, prompt, tokens=12)
        same(heard, truths[id(prompt)], llm)
        assert least <= heard.cached <= most  # at first, no more than a system prompt of the tests above


def test_a_chat(server: Running, llm: LLM) -> None:
    messages = PROMPTS["multi_turn"]["messages"]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    with post(
        server, "/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": True}
    ) as response:
        (choice,) = json.load(response)["choices"]
    assert output.prompt_token_ids == PROMPTS["multi_turn"]["prompt_ids"]
    assert choice["message"]["content"] == output.outputs[0].text
    words = [token_str(llm.tokenizer, i)[0] for i in output.outputs[0].token_ids]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == words


@pytest.mark.parametrize("name", ["arithmetic", "emoji_zwj"])
def test_the_oracle_where_it_is_sure(server: Running, llm: LLM, name: str) -> None:
    prompt = PROMPTS[name]
    sure = len(list(takewhile(lambda top: top[0][1] - top[1][1] > CLEAR, prompt["top5_first16"])))
    assert sure >= 7
    expected = prompt["greedy_ids"][:sure]
    assert ask(server, prompt["prompt_ids"], tokens=sure).tokens == [token_str(llm.tokenizer, i)[0] for i in expected]
