"""Probes that count: they find the same on any machine. tests/properties/test_probes.py holds them to their targets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from bench.probes.decode import decode
from bench.probes.play import Bench, Finding, at_most, exactly, numbers, request
from octavo.config.policy import POLICIES
from octavo.executor.fake import fake_answer


def published_at_finish() -> Iterator[Finding]:
    bench = Bench()
    bench.add(request(0, numbers(64), 1))
    bench.drain()
    cached = bench.scheduler.stats().blocks_cached
    yield exactly("blocks cached by a 64-token prompt with max_tokens = 1", cached, 4)
    for depth, chain, drafts in ((1, 1, 0), (2, 2, 0), (1, 1, 4), (2, 2, 4)):
        label = f"depth {depth}, chain {chain}, drafts {drafts}"
        cached = possible = hits = 0
        for answer in range(1, 41):
            bench = Bench(depth=depth, chain=chain, num_drafts=drafts)
            bench.add(request(0, numbers(10), answer))
            bench.drain()
            cached += bench.scheduler.stats().blocks_cached
            possible += (10 + answer - 1) // 16
            bench.add(request(1, [*numbers(10), *bench.answers[0]], 1))
            bench.drain()
            hits += bench.scheduler.stats().prefix_hits
        yield exactly(f"blocks cached by 10 + 1 ... 40 tokens, {label}", cached, possible)
        yield exactly(f"tokens hit by whoever goes on from these, {label}", hits, 16 * possible)


def never_fits() -> Iterator[Finding]:
    bench = Bench(num_blocks=5)
    refused = bench.core.add(request(0, numbers(64), 1))
    yield exactly(
        "a prompt as long as the whole pool is refused", refused is not None and refused.kind == "too_long", 1
    )
    bench.add(request(1, numbers(60), 100))
    bench.drain()
    yield exactly("max_tokens is cut to what the pool holds (60 of 64 used)", len(bench.answers[1]), 4)
    yield exactly("and that is counted", bench.scheduler.stats().clamped, 1)


def little_memory() -> Iterator[Finding]:
    """R14: KV for 1.2 requests, 20 queued."""
    for prompt, answer in ((200, 100), (100, 100), (20, 300)):
        one = -(-(prompt + answer) // 16)
        for budget in (16, 64, 2048):
            bench = Bench(
                num_blocks=int(1.2 * one) + 1,
                max_num_seqs=32,
                max_num_batched_tokens=budget,
                enable_prefix_caching=False,
            )
            asked = [request(i, numbers(prompt, base=i), answer) for i in range(20)]
            bench.add(*asked)
            idle, before = 0, -1
            while bench.core.has_work and bench.steps < 20_000:
                bench.step()
                now = bench.scheduler.stats().computed_tokens
                idle += now <= before
                before = now
            wrong = sum(bench.answers[r.seq_id] != fake_answer(r, facts=bench.facts, limit=2**20) for r in asked)
            useful = 20 * (prompt + answer - 1)
            label = f"KV for 1.2 requests of {prompt} + {answer}, budget {budget}"
            yield exactly(f"{label}: answers that changed or never came", wrong, 0)
            yield exactly(f"{label}: steps without progress", idle, 0)
            yield at_most(f"{label}: tokens computed / useful", before / useful, 1.2)


def shared_prompt() -> Iterator[Finding]:
    """W4, R32: 32 requests, 1,024 tokens in common and 32 of their own, 8 out."""
    common = numbers(1024)
    for budget, order in ((2048, 1), (512, 1), (512, -1), (128, 1)):
        bench = Bench(max_num_batched_tokens=budget)
        bench.add(*[request(i, [*common, *numbers(32, base=i + 1)], 8) for i in range(32)][::order])
        bench.drain()
        cold = bench.scheduler.stats()
        yield exactly(f"W4 cold, budget {budget}, order {order}: tokens computed", cold.computed_tokens, 2272)
        bench.add(*[request(100 + i, [*common, *numbers(32, base=i + 50)], 8) for i in range(32)])
        bench.drain()
        warm = bench.scheduler.stats().prefix_hits - cold.prefix_hits
        yield exactly(f"W4 warm, budget {budget}: tokens hit", warm, 32 * 1024)
    bench = Bench()
    bench.add(request(0, [*numbers(15), 1], 1), request(1, [*numbers(15), 2], 1))
    bench.drain()
    yield exactly("tokens hit by a shared prefix of 15", bench.scheduler.stats().prefix_hits, 0)
    bench = Bench()
    bench.add(request(0, numbers(64), 1, root=b"one"), request(1, numbers(64), 1, root=b"two"))
    bench.drain()
    yield exactly("tokens hit across roots", bench.scheduler.stats().prefix_hits, 0)
    bench = Bench()
    bench.add(request(0, numbers(64), 20))
    bench.drain()
    bench.add(request(1, numbers(64) + bench.answers[0], 1))
    bench.drain()
    yield exactly(
        "tokens hit of a prompt that goes on from an answer (64 + 20)", bench.scheduler.stats().prefix_hits, 80
    )


def preempted_once() -> Iterator[Finding]:
    """Nobody is preempted and admitted again in one plan, nobody in vain."""
    again = preempted = empty = 0
    for seed in range(120):
        size = (1, 2, 4)[seed % 3]
        bench = Bench(
            num_blocks=-(-58 // size) + (2, 5, 11)[seed // 3 % 3],
            block_size=size,
            max_num_seqs=8,
            max_num_batched_tokens=(8, 64)[seed % 2],
            num_drafts=(0, 4)[seed // 2 % 2],
            policy=[*POLICIES][seed // 5 % len(POLICIES)],
        )
        scheduler = bench.scheduler
        lost: set[int] = set()
        preempt, schedule = scheduler.preemption.preempt, scheduler.schedule

        def note(seq: Any, inner: Callable[..., None] = preempt, lost: set[int] = lost) -> None:
            lost.add(seq.seq_id)
            inner(seq)

        watched: Any = scheduler.preemption
        watched.preempt = note
        for i in range(8):
            bench.add(request(i, numbers(5 + (seed * 7 + i * 5) % 25, base=i), 5 + (seed + i * 3) % 20, priority=-i))
            lost.clear()
            plan = schedule()
            bench.core.executor.submit(plan) if plan is not None else None
            bench.core.flying += plan is not None
            again += sum(row.new is not None and row.new.seq_id in lost for row in plan.seqs) if plan else 0
            bench.step()
        while bench.core.has_work:
            lost.clear()
            plan = schedule()
            if plan is None:
                empty += 1
                break
            again += sum(row.new is not None and row.new.seq_id in lost for row in plan.seqs)
            bench.core.executor.submit(plan)
            scheduler.update(bench.core.executor.collect())
        preempted += scheduler.stats().preemptions
    yield exactly("preempted and admitted again inside one plan", again, 0)
    yield exactly("nothing planned although there was work", empty, 0)
    yield Finding("preemptions among which that was looked for", preempted, "at least 100", preempted >= 100)


def fairness() -> Iterator[Finding]:
    bench = Bench(max_num_batched_tokens=16, max_num_seqs=16, num_drafts=4)
    bench.add(*[request(i, numbers(10, base=i), 60) for i in range(12)])
    bench.drain()
    gap = max(b - a for steps in bench.arrived.values() for a, b in pairwise(steps))
    yield at_most("12 streams with drafts at budget 16: largest gap of a stream, in steps", gap, 1)
    bench = Bench(max_num_batched_tokens=4, max_num_seqs=16)
    bench.add(*[request(i, numbers(3, base=i), 40) for i in range(12)])
    bench.drain()
    gap = max(b - a for steps in bench.arrived.values() for a, b in pairwise(steps[1:]))
    yield at_most("12 streams at budget 4: largest gap of a stream, in steps", gap, 4)
    for threshold in (0, 128):
        bench = Bench(max_num_batched_tokens=512, long_prefill_token_threshold=threshold)
        bench.add(*[request(i, numbers(20, base=i), 200) for i in range(8)])
        for _ in range(5):
            bench.step()
        bench.add(request(100, numbers(32_768, base=9), 1))
        for _ in range(5):
            bench.step()
        came = bench.steps
        bench.add(request(200, numbers(100, base=11), 4))
        for _ in range(30):
            bench.step()
        gap = max(b - a for i in range(8) for a, b in pairwise(bench.arrived[i]))
        yield exactly(f"threshold {threshold}: a running stream's largest gap beside a 32k prompt", gap, 1)
        wait = bench.arrived[200][0] - came
        yield at_most(f"threshold {threshold}: steps until a newcomer's first token beside a 32k prompt", wait, 2)


def quiet_while_blocked() -> Iterator[Finding]:
    """A head that does not fit is looked at again when blocks came back, not every step."""
    bench = Bench(num_blocks=45)
    looked = [0]
    kv: Any = bench.scheduler.kv
    inner = kv.lookup

    def lookup(seq: Any) -> Any:
        looked[0] += 1
        return inner(seq)

    kv.lookup = lookup
    bench.add(request(0, numbers(300), 200), request(1, numbers(500, base=1), 8))
    bench.drain()
    yield at_most("prefix look-ups for two requests, one blocked for 200 steps", looked[0], 4)


GEMMA = (None, 512, 512, 512, 512, 512)
"""The groups of Gemma 3 270M: one of full layers, five of windows."""


def blocks_held(windows: Sequence[int | None], *, prompt: int = 2048, answer: int = 64, streams: int = 1) -> list[int]:
    """Blocks held after each step: `prompt` tokens in, `answer` out, 256 tokens a step, nothing cached."""
    bench = Bench(windows=windows, num_blocks=8001, max_num_batched_tokens=256, enable_prefix_caching=False)
    bench.add(*[request(i, numbers(prompt, base=i), answer) for i in range(streams)])
    held = []
    while bench.core.has_work:
        bench.step()
        held.append(bench.scheduler.stats().blocks_used)
    bench.scheduler.check()
    return held


def windows() -> Iterator[Finding]:
    """What windows give back, and that prefixes still hit."""
    full, sliding = blocks_held((None,) * 6), blocks_held(GEMMA)
    yield exactly("2k prompt, six full groups: most blocks held", max(full), 6 * 132)
    peak = 132 + 5 * ((511 + 256 + 30) // 16)
    yield at_most("the same with five windows of 512: most blocks held", max(sliding), peak)
    yield at_most("and while it decodes", max(sliding[-32:]), 132 + 5 * 34)
    bench = Bench(windows=GEMMA, max_num_batched_tokens=256)
    for i in range(3):
        bench.add(request(i, numbers(2048), 64))
        bench.drain()
    stats = bench.scheduler.stats()
    yield exactly("tokens hit by the same 2k prompt, twice", stats.prefix_hits, 2 * 2032)
    yield exactly("tokens computed again", stats.redone_tokens, 0)
    bench = Bench(windows=GEMMA, num_blocks=6 * 64 + 1, max_num_batched_tokens=64)
    refused = bench.core.add(request(0, numbers(1500), 20))
    bench.drain()
    yield exactly("1,500 tokens in a pool that held 1,024 without windows", refused is None, 1)
    bench = Bench(windows=(512,), num_blocks=64, max_num_batched_tokens=64)
    bench.add(request(0, numbers(5000), 20))
    bench.drain()
    yield exactly("5,000 tokens through a pool of 1,008 slots, windows only", len(bench.answers[0]), 20)


def lines_run(streams: int, context: int, *, num_blocks: int = 0) -> float:
    """Lines of Python run per sequence and step: cost without a clock, the same each time."""
    count, tracing = 0, sys.gettrace()

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    for half, call in enumerate(decode(streams, context, num_blocks=num_blocks, rounds=2)):
        if half < 32:  # the first block: prompts
            call()
            continue
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(tracing)
    return count / 16 / streams


def work() -> Iterator[Finding]:
    """What `cost` times, counted in lines: it repeats on any machine, but sees no growth inside one line."""
    few = lines_run(64, 256)
    yield at_most("lines of Python a sequence and step at 64 streams", few, 50)
    yield at_most("the same at 1,024 streams, over that at 64", lines_run(1024, 256) / few, 1.0)
    yield at_most("the same at contexts of 8,192, over that at 256", lines_run(64, 8192) / few, 1.0)
    yield at_most("the same in a pool of 2 million blocks, over that", lines_run(64, 256, num_blocks=2**21) / few, 1.0)


COUNTED = (
    published_at_finish,
    never_fits,
    little_memory,
    shared_prompt,
    preempted_once,
    fairness,
    quiet_while_blocked,
    windows,
    work,
)
