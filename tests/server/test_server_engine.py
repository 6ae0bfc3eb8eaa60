"""The server on the real AsyncLLM, whose engine process runs the fake executor."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from octavo.config.args import EngineArgs
from octavo.config.server import ServerConfig
from octavo.llm import AsyncLLM
from octavo.server.app import App
from tests.server.harness import Reply, ask
from tests.server.test_server_fuzz import STATUSES, body

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def serving(**args: Any) -> AsyncIterator[tuple[App, AsyncLLM]]:
    llm = await AsyncLLM.start(EngineArgs(**{"model": "fake", "executor": "fake", **args}))
    try:
        yield App(llm, ServerConfig()), llm
    finally:
        await llm.close()


async def settled(app: App, llm: AsyncLLM, *, within: float = 2.0) -> None:
    """R12: nothing runs, waits or holds a block."""
    deadline = time.monotonic() + within
    while True:
        # A snapshot comes with a step: a tiny request makes one.
        assert (await ask(app, "POST", TEXT, {"prompt": [1], "max_tokens": 1})).status == 200
        stats = llm.stats()
        if not (stats.running or stats.waiting or stats.blocks_used or llm.num_open or app.open_requests):
            return
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.05)


def text_of(reply: Reply) -> str:
    return "".join(e["choices"][0].get("text", "") for e in reply.events[:-1])


def test_streams_equal_whole_answers() -> None:
    async def run() -> None:
        async with serving() as (app, llm):
            works = []
            for index in range(20):
                data = {
                    "prompt": f"prompt {index} 世界",
                    "max_tokens": 40,
                    "seed": index,
                    "ignore_eos": True,
                    "stop": ["w1"],
                }
                works += [ask(app, "POST", TEXT, data), ask(app, "POST", TEXT, {**data, "stream": True})]
            replies = await asyncio.gather(*works)
            for whole, stream in zip(replies[::2], replies[1::2], strict=True):
                assert whole.status == stream.status == 200
                choice = whole.json()["choices"][0]
                assert text_of(stream) == choice["text"] and "w1" not in choice["text"]
                assert stream.events[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
            await settled(app, llm)

    asyncio.run(run())


def test_slow_clients_get_fewer_events_and_the_same_text() -> None:
    async def run() -> None:
        async with serving() as (app, llm):
            data = {"prompt": "slow", "max_tokens": 300, "seed": 1, "ignore_eos": True}
            whole = await ask(app, "POST", TEXT, data)
            stream = await ask(app, "POST", TEXT, {**data, "stream": True}, slow=0.05)
            assert text_of(stream) == whole.json()["choices"][0]["text"]
            assert len(stream.events) < 150
            await settled(app, llm)

    asyncio.run(run())


def test_cached_tokens_and_salts() -> None:
    async def run() -> None:
        async with serving() as (app, _):
            data: dict[str, Any] = {"prompt": list(range(100)), "max_tokens": 2}

            async def cached(**more: Any) -> int:
                usage = (await ask(app, "POST", TEXT, {**data, **more})).json()["usage"]
                return int(usage["prompt_tokens_details"]["cached_tokens"])

            assert await cached() == 0
            assert await cached() == 96
            assert await cached(cache_salt="a") == 0
            assert await cached(cache_salt="a") == 96

    asyncio.run(run())


def test_five_hundred_disconnects_leak_nothing() -> None:
    async def run() -> None:
        rng = random.Random(5)
        async with serving(max_num_seqs=8, num_kv_blocks=513, max_model_len=2048) as (app, llm):
            works = []
            for index in range(500):
                data: dict[str, Any] = {
                    "max_tokens": 1500,
                    "ignore_eos": True,
                    "stream": bool(index % 2),
                    "n": 1 + index % 3,
                }
                data["prompt"] = [rng.randrange(256) for _ in range(rng.choice([3, 60, 1200]))]
                how = (
                    {"leave_after": 1 + index % 5} if data["stream"] and index % 4 == 1 else {"leave_at": rng.random()}
                )
                works.append(ask(app, "POST", TEXT, data, **how))
            await asyncio.gather(*works)
            await settled(app, llm)

    asyncio.run(run())


def test_random_bodies_do_not_hurt_the_engine() -> None:
    async def run() -> None:
        rng = random.Random(11)
        async with serving(max_model_len=300) as (app, llm):
            for _ in range(6):
                works = []
                for _ in range(50):
                    path = rng.choice([TEXT, CHAT])
                    works.append(ask(app, "POST", path, raw=body(rng, path)))
                for reply in await asyncio.gather(*works):
                    assert reply.status in STATUSES, reply.body
                    if reply.status != 200:
                        assert reply.json()["error"]["message"]
            await settled(app, llm)

    asyncio.run(run())


def test_a_killed_engine_shows_in_health() -> None:
    """Within a second: `scripts/accept --only front` holds the clock."""

    async def run() -> None:
        async with serving(max_model_len=8192) as (app, llm):
            data = {"prompt": [1, 2, 3], "max_tokens": 8000, "ignore_eos": True}
            stream = asyncio.ensure_future(ask(app, "POST", TEXT, {**data, "stream": True}))
            whole = asyncio.ensure_future(ask(app, "POST", TEXT, data))
            await asyncio.sleep(0.1)
            os.kill(llm.engine_pid, signal.SIGKILL)
            begin = time.monotonic()
            while (await ask(app, "GET", "/health")).status != 503:
                assert time.monotonic() - begin < 20.0
                await asyncio.sleep(0.01)
            for reply in await asyncio.gather(stream, whole):
                error = reply.events[-1]["error"] if reply.status == 200 else reply.json()["error"]
                assert error["code"] == "engine_dead"

    asyncio.run(run())


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    async def run() -> None:
        async with serving(max_model_len=128) as (app, llm):
            reply = await ask(app, "POST", TEXT, {"prompt": [1] * 200})
            assert reply.status == 400 and "200" in reply.json()["error"]["message"] and "127" in reply.body.decode()
            reply = await ask(app, "POST", CHAT, {"messages": [{"role": "user", "content": "x" * 500}], "stream": True})
            assert reply.status == 400 and reply.json()["error"]["code"] == "context_length_exceeded"
            await settled(app, llm)

    asyncio.run(run())


def test_full_queue_answers_at_once() -> None:
    async def run() -> None:
        async with serving(max_num_seqs=1, max_queue=1, max_model_len=4096) as (app, llm):
            data = {"prompt": [1], "max_tokens": 4000, "ignore_eos": True, "stream": True}
            held = [asyncio.ensure_future(ask(app, "POST", TEXT, data, leave_at=1.5)) for _ in range(2)]
            await asyncio.sleep(0.05)
            reply = await ask(app, "POST", TEXT, data)
            assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
            assert not any(one.done() for one in held), "refused at once, not after a wait for room"
            await asyncio.gather(*held)
            await settled(app, llm)

    asyncio.run(run())


def test_health_while_long_prompts_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """R16: tokenising does not stop the event loop: /health answers while a long prompt is in the tokenizer."""

    async def run() -> None:
        async with serving(max_model_len=400_000, num_kv_blocks=30_000) as (app, llm):
            encode: Callable[..., list[int]] = type(llm.tokenizer).encode
            held, go_on = threading.Event(), threading.Event()

            def slow(self: object, text: str, **options: Any) -> list[int]:
                held.set()
                assert go_on.wait(30.0), "/health never answered"
                return encode(self, text, **options)

            monkeypatch.setattr(type(llm.tokenizer), "encode", slow)
            data = {"messages": [{"role": "user", "content": "word " * 40_000}], "max_tokens": 1}
            works = [asyncio.ensure_future(ask(app, "POST", CHAT, data)) for _ in range(3)]
            while not held.is_set():
                await asyncio.sleep(0.001)
            assert (await ask(app, "GET", "/health")).status == 200 and not any(work.done() for work in works)
            go_on.set()
            assert [(await work).status for work in works] == [200] * 3

    asyncio.run(run())


@pytest.mark.parametrize("typed", ["<|im_start|>", "<|im_end|>", "<|eos|>"])
def test_specials_that_users_type_are_text(typed: str) -> None:
    """S16, R22."""

    async def run() -> None:
        async with serving() as (app, _):
            messages = [{"role": "user", "content": typed}]
            ids = (await ask(app, "POST", "/tokenize", {"messages": messages})).json()["tokens"]
            assert ids.count(258) == 2 and ids.count(259) == 1 and ids.count(257) == 0  # the template's own
            ids = (await ask(app, "POST", "/tokenize", {"prompt": typed})).json()["tokens"]
            assert max(ids) < 256
            back = (await ask(app, "POST", "/detokenize", {"tokens": ids})).json()["prompt"]
            assert back == typed

    asyncio.run(run())


def test_logprobs_of_the_prompt_in_json() -> None:
    async def run() -> None:
        async with serving() as (app, _):
            data = {"prompt": [1, 2, 3, 4], "max_tokens": 2, "echo": True, "logprobs": 3}
            reply = await ask(app, "POST", TEXT, data)
            scores = json.loads(reply.body, parse_constant=lambda name: pytest.fail(name))["choices"][0]["logprobs"]
            assert len(scores["tokens"]) == 6 and scores["token_logprobs"][0] is None
            assert None not in scores["token_logprobs"][1:]
            assert [len(top) for top in scores["top_logprobs"][1:]] == [3] * 5

    asyncio.run(run())
