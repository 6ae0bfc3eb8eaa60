"""How requests of `AsyncLLM` end when it drains or is closed, also those that are still being tokenised."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.errors import EngineDead, QueueFull
from octavo.text.tokenizer import Tokenizer
from octavo.types import FinishReason
from tests.engine.conftest import empty, fake_args, with_async
from tests.engine.test_async import SHORT, endless, last

LONG = "x" * 10_000


@pytest.fixture
def slow_tokenizer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Long texts wait for the event on their thread, and are short then."""
    go_on = threading.Event()
    encode: Callable[..., list[int]] = Tokenizer.encode

    def slow(self: Tokenizer, text: str, **options: Any) -> list[int]:
        if text == LONG:
            go_on.wait(20)
        return encode(self, text[:100], **options)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    return go_on


def test_drain() -> None:
    async def test(llm: AsyncLLM) -> None:
        assert await llm.drain(1.0)
        with pytest.raises(QueueFull, match="shutting down"):
            await last(llm, "a", SHORT)

    async def late(llm: AsyncLLM) -> None:
        short = asyncio.create_task(last(llm, "a", SamplingParams(max_tokens=300, ignore_eos=True)))
        await asyncio.sleep(0.02)
        assert await llm.drain(20.0)
        assert (await short).outputs[0].finish_reason is FinishReason.LENGTH

    async def too_late(llm: AsyncLLM) -> None:
        task = asyncio.create_task(last(llm, "a", endless()))
        await asyncio.sleep(0.05)
        assert not await llm.drain(0.01)
        assert (await task).outputs[0].finish_reason is FinishReason.ABORT
        await empty(llm)

    for test_case in (test, late, too_late):
        with_async(test_case)


def test_drain_waits_for_what_is_being_tokenised(slow_tokenizer: threading.Event) -> None:
    async def test(llm: AsyncLLM) -> None:
        task = asyncio.create_task(last(llm, LONG, SHORT))
        await asyncio.sleep(0.05)
        assert llm.num_open == 1
        draining = asyncio.create_task(llm.drain(20.0))
        await asyncio.sleep(0.1)
        assert not draining.done()
        slow_tokenizer.set()
        assert await draining and task.done()
        assert (await task).outputs[0].finish_reason is FinishReason.LENGTH
        await empty(llm)

    with_async(test)


def test_what_is_tokenised_when_the_time_is_over_is_refused(slow_tokenizer: threading.Event) -> None:
    async def test(llm: AsyncLLM) -> None:
        task = asyncio.create_task(last(llm, LONG, endless()))
        await asyncio.sleep(0.05)
        assert not await llm.drain(0.05)
        slow_tokenizer.set()
        with pytest.raises(QueueFull, match="shutting down"):
            await task
        await empty(llm)

    with_async(test)


def test_close_ends_open_requests() -> None:
    async def run() -> None:
        llm = await AsyncLLM.start(fake_args())
        task = asyncio.create_task(last(llm, "a", endless()))
        await asyncio.sleep(0.05)
        await llm.close()
        with pytest.raises(EngineDead, match="closed"):
            await task
        with pytest.raises(EngineDead):
            llm.check_health()
        await llm.close()

    asyncio.run(run())


def test_close_ends_what_is_being_tokenised(slow_tokenizer: threading.Event) -> None:
    """One on the thread, one that waits for it, a conversation behind them."""

    async def test(llm: AsyncLLM) -> None:
        talk = [{"role": "user", "content": LONG}]
        works: list[Any] = [last(llm, LONG, SHORT), last(llm, LONG, SHORT), llm.render_chat_async(talk)]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(0.05)
        assert llm.num_open == 2
        await llm.close()
        slow_tokenizer.set()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, EngineDead) and "closed" in str(error)
        assert llm.num_open == 0
        with pytest.raises(EngineDead, match="closed"):
            await llm.render_chat_async(talk)

    with_async(test)


def test_cancelled_while_tokenising_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(llm: AsyncLLM) -> None:
        encode: Callable[..., list[int]] = type(llm.tokenizer).encode

        def slow(self: object, text: str, **options: Any) -> list[int]:
            time.sleep(0.2)
            return encode(self, text[:1000], **options)

        monkeypatch.setattr(type(llm.tokenizer), "encode", slow)
        task = asyncio.create_task(last(llm, "x" * 10_000, SHORT))
        await asyncio.sleep(0.05)
        assert llm.num_open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert llm.num_open == 0
        await empty(llm)

    with_async(test)
