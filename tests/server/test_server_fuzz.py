"""R17, S10, S14, S20: random bodies by the thousand; every answer is proper, nothing stays open, nothing leaks."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

from octavo.config.server import ServerConfig
from octavo.server.app import App
from octavo.server.decode import NEUTRAL
from octavo.server.openai.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from tests.fakes import FakeAsyncLLM
from tests.server.harness import ask

BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
# Paths of a file system, addresses, tracebacks (S20). Bodies of the fuzz hold none of these.
LEAK = re.compile(r"Traceback|File \"|site-packages|/src/|/home/|\.py\b|0x[0-9a-f]{6,}|object at|Error\(")
STATUSES = {200, 400, 404, 413, 415}

NUMBERS: list[Any] = [0, 1, 2, -1, 5, 0.0, 0.5, 1.0, 1.5, -0.5, 1e9, 1e308, -1e308, 2**31, 2**63, -(2**63) - 1, 2**200]
STRINGS = [
    "",
    "a",
    "\x00",
    "é",
    "👩‍👩‍👧",
    "<|im_start|>",
    "<bos>",
    "a" * 300,
    "\u2028",
    "{{ x }}",
    "../x",
    "%s%n",
    "-1",
    "true",
]

KWARGS = ["enable_thinking", "x", "messages", "self", "add_generation_prompt", "tools", "tokenize", "bos_token", "a b"]
"""Names for the template: free ones, and ones that rendering itself is made of."""


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 3 and kind < 0.12:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if depth < 3 and kind < 0.22:
        return {
            rng.choice([*STRINGS, "type", "text", "1", "5"]): value(rng, depth + 1) for _ in range(rng.randrange(3))
        }
    if kind < 0.3:
        return rng.choice([None, True, False])
    return rng.choice(NUMBERS) if kind < 0.65 else rng.choice(STRINGS)


def good(rng: random.Random, name: str) -> Any:
    """Mostly valid values, so that many requests get through."""
    texts = ["hi", "Grüße", "👩‍👩‍👧", "x" * rng.randrange(1, 700)]
    makers: dict[str, Any] = {
        "prompt": lambda: rng.choice(
            [rng.choice(texts), [1, 2, 3], ["a", "b"], [[1], [2, 3]], [rng.randrange(-2, 300)]]
        ),
        "messages": lambda: [{"role": rng.choice(["user", "assistant", "system"]), "content": rng.choice(texts)}],
        "tokens": lambda: [rng.randrange(0, 262) for _ in range(rng.randrange(5))],
        "max_tokens": lambda: rng.randrange(1, 40),
        "max_completion_tokens": lambda: rng.randrange(1, 40),
        "n": lambda: rng.choice([1, 1, 2, 3]),
        "stream": lambda: rng.random() < 0.5,
        "stop": lambda: rng.choice(["a", ["b", "世"], "\n"]),
        "logprobs": lambda: rng.choice([True, False, 0, 1, 5]),
        "top_logprobs": lambda: rng.randrange(6),
        "prompt_logprobs": lambda: rng.randrange(3),
        "echo": lambda: rng.random() < 0.5,
        "temperature": lambda: rng.random(),
        "seed": lambda: rng.randrange(100),
        "stream_options": lambda: {"include_usage": rng.random() < 0.5},
        "logit_bias": lambda: {str(rng.randrange(260)): rng.uniform(-5, 5)},
        "ignore_eos": lambda: rng.random() < 0.5,
        "model": lambda: rng.choice(["fake", "fake", "other", None]),
        "chat_template_kwargs": lambda: {rng.choice(KWARGS): value(rng) for _ in range(rng.randrange(3))},
    }
    maker = makers.get(name)
    return maker() if maker else rng.choice([None, 0, 1, "a"])


def body(rng: random.Random, path: str) -> bytes:
    kind = BODIES[path]
    required = {"/v1/completions": ["prompt"], "/v1/chat/completions": ["messages"], "/tokenize": ["prompt"]}
    data = {name: good(rng, name) for name in required.get(path, ["tokens"])}
    if rng.random() < 0.6:  # a request of sound mind
        safe = {"max_tokens", "n", "stream", "stop", "echo", "temperature", "seed", "logit_bias", "ignore_eos"}
        fields = sorted(safe.intersection(kind.__struct_fields__))
        data |= {name: good(rng, name) for name in rng.sample(fields, min(len(fields), rng.randrange(7)))}
        if data.get("stream"):
            data["stream_options"] = {"include_usage": True}
        return json.dumps(data).encode()
    for _ in range(rng.randrange(6)):
        name = rng.choice(kind.__struct_fields__)
        data[name] = good(rng, name) if rng.random() < 0.7 else value(rng)
    if rng.random() < 0.15:
        data[rng.choice([*NEUTRAL, *STRINGS, "Prompt", "max_token"])] = value(rng)
    if rng.random() < 0.1:
        data.pop(rng.choice(list(data)))
    raw = json.dumps(data, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    if rng.random() < 0.1:  # damage
        cut = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(cut))
            cut[at : at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(3)))
        raw = bytes(cut)
    return raw


def test_random_bodies() -> None:
    async def run() -> None:
        rng = random.Random(20261129)
        llm = FakeAsyncLLM(max_model_len=256)
        app = App(llm, ServerConfig())
        seen: dict[int, int] = {}
        streams = 0
        for _ in range(25):
            works = []
            for _ in range(100):
                path = rng.choice(["/v1/completions", "/v1/chat/completions"] * 3 + ["/tokenize", "/detokenize"])
                leave = rng.randrange(1, 4) if rng.random() < 0.1 else None
                works.append(ask(app, "POST", path, raw=body(rng, path), leave_after=leave))
            for reply in await asyncio.gather(*works):
                seen[reply.status] = seen.get(reply.status, 0) + 1
                assert reply.status in STATUSES, reply.body
                if reply.status != 200:
                    error = reply.json()["error"]
                    assert error["message"] and error["type"] and not LEAK.search(error["message"]), error
                elif reply.headers["content-type"].startswith("text/event-stream"):
                    streams += 1
                    assert not reply.complete or reply.events[-1] == "[DONE]"
                elif reply.complete:
                    json.loads(reply.body, parse_constant=lambda name: 1 / 0)
        assert not llm.open and app.open_requests == 0 and not app._work
        assert (await ask(app, "GET", "/health")).status == 200
        assert seen[200] > 500 and seen[400] > 500 and seen[404] > 10 and streams > 150, (seen, streams)

    asyncio.run(run())
