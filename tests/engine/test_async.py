"""`AsyncLLM` with an engine process on the fake executor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.engine.messages import EngineStats
from octavo.errors import InvalidRequest, PromptTooLong, QueueFull
from octavo.llm import reporter
from octavo.llm.reporter import Reporter
from octavo.types import FinishReason, RequestOutput
from tests.engine.conftest import empty, fake_args, with_async

SHORT = SamplingParams(max_tokens=20, ignore_eos=True, seed=5)


def endless(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=4000, ignore_eos=True, **fields)


async def last(llm: AsyncLLM, prompt: Any, params: SamplingParams, **options: Any) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params, **options)]
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs[-1]


def test_equals_the_engine_in_process() -> None:
    """Alone in process, together in another process: the same text, sampled too."""
    prompts = [f"prompt {i} " * (i + 1) for i in range(24)]
    params = [
        SamplingParams(max_tokens=10 + i, ignore_eos=True, seed=i, temperature=i % 2, n=1 + i % 3) for i in range(24)
    ]
    with LLM(fake_args()) as alone:
        expected = [alone.generate(p, q, use_tqdm=False)[0] for p, q in zip(prompts, params, strict=True)]

    async def test(llm: AsyncLLM) -> None:
        got = await asyncio.gather(*(last(llm, p, q) for p, q in zip(prompts, params, strict=True)))
        for one, other in zip(expected, got, strict=True):
            assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
            assert [c.text for c in one.outputs] == [c.text for c in other.outputs]
        await empty(llm)

    with_async(test)


def test_deltas_join() -> None:
    async def test(llm: AsyncLLM) -> None:
        parts = [o async for o in llm.generate("abc", SHORT)]
        done = parts[-1].outputs[0]
        assert "".join(p.outputs[0].delta for p in parts) == done.text
        assert [i for p in parts for i in p.outputs[0].delta_ids] == done.token_ids and len(done.token_ids) == 20
        only = [o async for o in llm.generate("abc", SHORT, stream=False)]
        assert len(only) == 1 and only[0].outputs[0].text == done.text == only[0].outputs[0].delta

    with_async(test)


def test_a_slow_consumer_gets_fewer_larger_deltas() -> None:
    async def test(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=500, ignore_eos=True)
        parts: list[RequestOutput] = []
        async for part in llm.generate("abc", params):
            parts.append(part)
            await asyncio.sleep(0.05)
        assert len(parts) < 100
        assert "".join(p.outputs[0].delta for p in parts) == parts[-1].outputs[0].text
        assert len(parts[-1].outputs[0].token_ids) == 500

    with_async(test)


def test_prefix_hits_are_reported() -> None:
    async def test(llm: AsyncLLM) -> None:
        prompt = list(range(100))
        cold, warm = await last(llm, prompt, SHORT), await last(llm, prompt, SHORT)
        salted = await last(llm, prompt, SHORT, cache_salt="other")
        assert (cold.num_cached_tokens, warm.num_cached_tokens, salted.num_cached_tokens) == (0, 96, 0)
        await llm.reset_prefix_cache()
        assert (await last(llm, prompt, SHORT)).num_cached_tokens == 0

    with_async(test)


def test_refusals_come_before_the_first_item() -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(PromptTooLong, match="got 5000 tokens, allowed: up to 4095"):
            await last(llm, [1] * 5000, SHORT)
        with pytest.raises(InvalidRequest, match="0 to 319"):
            await last(llm, [1, 320], SHORT)
        with pytest.raises(InvalidRequest):
            await last(llm, "", SHORT)
        stream = llm.generate("a", endless(), request_id="mine")
        await anext(stream)
        with pytest.raises(InvalidRequest, match="in use"):
            await last(llm, "a", SHORT, request_id="mine")
        await stream.aclose()
        assert (await last(llm, "a", SHORT, request_id="mine")).request_id == "mine"
        assert llm.metrics.rejections.by_label["invalid"] == 3
        await empty(llm)

    with_async(test)


def test_a_full_queue_refuses_at_once() -> None:
    """R15."""

    async def test(llm: AsyncLLM) -> None:
        tasks = [asyncio.create_task(last(llm, f"{i}", endless())) for i in range(12)]
        await asyncio.sleep(0.2)
        for count in (1, 3):
            with pytest.raises(QueueFull, match="8 running and 4 waiting") as caught:
                await last(llm, "x" * 1000, SamplingParams(n=count))
            assert 1 <= caught.value.retry_after <= 60 and not any(task.done() for task in tasks)
        assert llm.metrics.rejections.by_label["queue_full"] == 2
        with pytest.raises(InvalidRequest, match="n: got 13, allowed: at most 12"):
            await last(llm, "x", SamplingParams(n=13))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await empty(llm)
        await last(llm, "x", SHORT)

    with_async(test, max_queue=4, max_num_seqs=8)


def test_abort_by_id() -> None:
    async def test(llm: AsyncLLM) -> None:
        task = asyncio.create_task(last(llm, "a", endless(n=2), request_id="mine"))
        await asyncio.sleep(0.1)
        await llm.abort("mine")
        await llm.abort("unknown")
        assert [c.finish_reason for c in (await task).outputs] == [FinishReason.ABORT] * 2
        await empty(llm)

    with_async(test)


def test_random_disconnects_leak_nothing() -> None:
    """R12: streaming and not, n > 1, queued, mid-prefill, mid-answer, before the first step, at the very end."""
    rng = random.Random(11)

    async def one(llm: AsyncLLM, counts: dict[str, int]) -> None:
        params = SamplingParams(
            max_tokens=rng.choice((3, 30, 600)), ignore_eos=True, n=rng.choice((1, 1, 3)), stop=("zq",)
        )
        prompt = [rng.randrange(256) for _ in range(rng.choice((1, 40, 900)))]
        stream = llm.generate(prompt, params, stream=rng.random() < 0.7)
        way = rng.choice(("close", "cancel", "cancel now", "drop", "finish" if params.max_tokens < 100 else "close"))
        counts[way] = counts.get(way, 0) + 1
        if way == "close":
            for _ in range(rng.randrange(4)):
                if await anext(stream, None) is None:
                    break
            await stream.aclose()
        elif way == "drop":
            await anext(stream, None)
            del stream
        elif way == "finish":
            async for _ in stream:
                pass
        else:

            async def consume() -> None:
                async for _ in stream:
                    pass

            task = asyncio.create_task(consume())
            await asyncio.sleep(0 if way == "cancel now" else rng.random() * 0.05)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def test(llm: AsyncLLM) -> None:
        counts: dict[str, int] = {}
        waves = [asyncio.create_task(one(llm, counts)) for _ in range(240)]
        await asyncio.gather(*waves)
        await empty(llm)
        assert len(counts) == 5 and min(counts.values()) > 20, counts
        assert not llm._outputs.requests and llm._preparing == 0
        assert llm.metrics.success.by_label["abort"] > 50
        await last(llm, "still here", SHORT)

    with_async(test, max_num_seqs=6, max_num_batched_tokens=48, num_kv_blocks=400)


def test_neighbours_that_leave_change_nothing() -> None:
    """Survivors answer as if alone while others come and go around them, with too few blocks for all."""
    rng = random.Random(3)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 200))] for _ in range(24)]
    params = [SamplingParams(max_tokens=60, ignore_eos=True, seed=i, temperature=i % 2) for i in range(24)]
    with LLM(fake_args()) as alone:
        expected = [
            alone.generate(p, q, use_tqdm=False)[0].outputs[0].token_ids for p, q in zip(prompts, params, strict=True)
        ]

    async def leaver(llm: AsyncLLM) -> None:
        stream = llm.generate(rng.choice(prompts)[: rng.randrange(1, 100)], endless(n=rng.choice((1, 2))))
        for _ in range(rng.randrange(3)):
            await anext(stream)
        await stream.aclose()

    async def leavers(llm: AsyncLLM) -> None:
        for _ in range(6):
            await asyncio.gather(*(leaver(llm) for _ in range(10)))

    async def test(llm: AsyncLLM) -> None:
        busy = asyncio.create_task(leavers(llm))
        got = await asyncio.gather(*(last(llm, p, q) for p, q in zip(prompts, params, strict=True)))
        await busy
        assert [o.outputs[0].token_ids for o in got] == expected
        await empty(llm)

    with_async(test, loop_factory=uvloop.new_event_loop, num_kv_blocks=260, max_num_batched_tokens=32)


def test_long_prompts_do_not_stall_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """R16: tokenising happens on a thread; the loop turns while three prompts are held in it."""

    async def test(llm: AsyncLLM) -> None:
        encode: Callable[..., list[int]] = type(llm.tokenizer).encode
        held, go_on = threading.Semaphore(0), threading.Event()

        def slow(self: object, text: str, **options: Any) -> list[int]:
            held.release()
            assert go_on.wait(30.0), "the event loop never came to set it"
            return encode(self, text[:1000], **options)

        monkeypatch.setattr(type(llm.tokenizer), "encode", slow)
        work = [asyncio.create_task(last(llm, "x" * 10_000, SHORT)) for _ in range(3)]
        while not held.acquire(blocking=False):
            await asyncio.sleep(0.001)
        assert not any(task.done() for task in work)
        go_on.set()
        await asyncio.gather(*work)

    with_async(test)


def test_metrics_follow_requests() -> None:
    async def test(llm: AsyncLLM) -> None:
        await asyncio.gather(*(last(llm, "abc", SHORT) for _ in range(5)))
        await empty(llm)
        text = llm.metrics.render().decode()
        for line in (
            'octavo:prompt_tokens_total{model_name="fake"} 15.0',
            'octavo:generation_tokens_total{model_name="fake"} 100.0',
            'octavo:request_success_total{finished_reason="length",model_name="fake"} 5.0',
            'octavo:time_to_first_token_seconds_count{model_name="fake"} 5.0',
            'octavo:inter_token_latency_seconds_count{model_name="fake"} 95.0',
            'octavo:e2e_request_latency_seconds_count{model_name="fake"} 5.0',
            'octavo:num_requests_running{model_name="fake"} 0.0',
        ):
            assert line in text.splitlines(), line
        steps = llm.stats().steps
        assert f'octavo:iteration_tokens_total_count{{model_name="fake"}} {float(steps)}' in text

    with_async(test)


def test_render_chat() -> None:
    async def test(llm: AsyncLLM) -> None:
        message = {"role": "user", "content": "hi"}
        ids = llm.render_chat([message])
        assert ids == await llm.render_chat_async([message]) and ids[0] == 258
        long = {"role": "user", "content": "hi" * 10_000}
        assert len(await llm.render_chat_async([long])) > 10_000
        with pytest.raises(InvalidRequest, match="chat_template_kwargs: got 'self'"):
            await llm.render_chat_async([message], chat_template_kwargs={"self": 1})
        assert (await last(llm, ids, SHORT)).finished

    with_async(test)


def test_reporter_speaks_only_while_busy() -> None:
    async def test(llm: AsyncLLM) -> None:
        reporter = Reporter(llm.metrics, llm.stats)
        assert reporter.line(10.0) is None
        await last(llm, "abc", SHORT)
        line = reporter.line(10.0)
        assert line is not None and "0.3 tok/s in, 2.0 out" in line
        await empty(llm)
        assert reporter.line(10.0) is None

    with_async(test)


class LogLines(logging.Handler):
    """What the reporter logs, each line with the engine's numbers at that moment."""

    def __init__(self, llm: AsyncLLM) -> None:
        super().__init__()
        self.llm = llm
        self.seen: list[tuple[str, EngineStats, float, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        metrics = self.llm.metrics
        counts = metrics.prompt_tokens.value, metrics.generation_tokens.value
        self.seen.append((record.getMessage(), self.llm.stats(), *counts))


def test_a_log_line_while_busy(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Every 10 s, here every quarter: streams, queue, tokens a second in and out, KV use, hit rate."""
    assert reporter.INTERVAL == 10.0
    monkeypatch.setattr(reporter, "INTERVAL", 0.25)
    log = logging.getLogger("octavo.llm.reporter")
    caplog.set_level(logging.INFO, log.name)

    async def test(llm: AsyncLLM) -> None:
        before, came, went = llm.stats(), 0.0, 0.0
        log.addHandler(lines := LogLines(llm))
        try:
            await last(llm, list(range(100)), SHORT)
            busy = [asyncio.create_task(last(llm, list(range(100)), endless())) for _ in range(3)]
            until = time.monotonic() + 10
            while not (lines.seen and lines.seen[-1][0].startswith("2 running, 1 waiting; 0.0 tok/s in, ")):
                assert time.monotonic() < until and not any(task.done() for task in busy)
                await asyncio.sleep(0.01)
        finally:
            log.removeHandler(lines)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        for line, now, prompts, answers in lines.seen:
            queries, hits = now.prefix_queries - before.prefix_queries, now.prefix_hits - before.prefix_hits
            assert line == (
                f"{now.running} running, {now.waiting} waiting; "
                f"{(prompts - came) / 0.25:,.1f} tok/s in, {(answers - went) / 0.25:,.1f} out; "
                f"KV {now.kv_usage:.0%} used, prefix hits {f'{hits / queries:.0%}' if queries else '-'}"
            )
            before, came, went = now, prompts, answers
        text = [line for line, *_ in lines.seen]
        assert " 0.0 out" not in text[-1] and text[-1].endswith("prefix hits -")
        assert "KV 0% used" not in text[-1]
        assert any(line.endswith("%") and not line.endswith(" 0%") for line in text), "two of four were read before"
        await empty(llm)

    with_async(test, max_num_seqs=2, num_kv_blocks=600)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": None}, "params: got None, allowed: a SamplingParams"),
        ({"params": {"temperature": 0}}, "params: got {'temperature': 0}, allowed: a SamplingParams"),
        ({"priority": True}, "priority: got True, allowed: an integer from"),
        ({"priority": None}, "priority: got None, allowed: an integer from"),
        ({"priority": 5}, "priority: got 5, allowed: 0 "),
    ],
)
def test_a_wrong_argument_is_refused_and_the_engine_goes_on(options: dict[str, Any], message: str) -> None:
    async def test(llm: AsyncLLM) -> None:
        given = {"params": SamplingParams(max_tokens=3)} | options
        with pytest.raises(InvalidRequest, match=re.escape(message)):
            async for _ in llm.generate("x", **given):
                pass
        assert llm.num_open == 0
        outputs = [o async for o in llm.generate("x", SamplingParams(max_tokens=3, ignore_eos=True))]
        assert len(outputs[-1].outputs[0].token_ids) == 3

    with_async(test)


def test_what_is_changed_after_it_was_checked_is_checked_again() -> None:
    async def test(llm: AsyncLLM) -> None:
        params = SamplingParams(logit_bias={5: 1.0})
        assert params.logit_bias is not None
        params.logit_bias[5] = True
        with pytest.raises(InvalidRequest, match="logit_bias: got True"):
            async for _ in llm.generate("x", params):
                pass
        llm.check_health()

    with_async(test)
