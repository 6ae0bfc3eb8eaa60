"""The promise on a real model: a request's bits do not depend on the schedule.

Every case runs the same requests under another schedule, batch, cache state, thread count or instruction set, with the
KV arena filled with NaN first, and compares token ids and log-probabilities with `==` against each request run alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from octavo.config.args import EngineArgs
from octavo.config.scheduler import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.inline import InlineExecutor
from octavo.sched.scheduler import Scheduler
from octavo.types import Request, SamplingParams
from tests.engine.conftest import Watched
from tests.models_at_hand import smollm2

pytestmark = pytest.mark.model
VOCAB = 49152
ANSWER = 12


@dataclass(frozen=True)
class Schedule:
    """How a batch is run; the default is the plain way."""

    budget: int = 512
    chunk: int = 0
    seqs: int = 64
    prefix: bool = False
    blocks: int | None = None
    depth: int = 1
    chain: int = 1
    rounds: int = 1
    """Run the same requests again on the same scheduler (round 2 hits the cache)."""
    happens: tuple[str, ...] = ()
    """Counters of the scheduler that must not stay 0: the case proves nothing where they do."""


Answer = tuple[tuple[int, ...], tuple[float, ...]]


def request(i: int, *, length: int, temperature: float, shared: int = 0) -> Request:
    """Request i: `shared` tokens common to all, the rest its own."""
    rng = np.random.default_rng(i)
    common = np.random.default_rng(10_000).integers(1000, 45000, shared)
    ids = np.concatenate([common, rng.integers(1000, 45000, length - shared)]).astype("<i4")
    params = SamplingParams(
        max_tokens=ANSWER, temperature=temperature, seed=77 + i, top_p=0.95, ignore_eos=True, logprobs=2
    )
    return Request(i, ids.tobytes(), params, arrival=float(i))


def scheduler_config(executor: InlineExecutor, how: Schedule) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=how.seqs,
        max_num_batched_tokens=how.budget,
        long_prefill_token_threshold=how.chunk,
        enable_prefix_caching=how.prefix,
        policy="fcfs",
        chain=how.chain,
        hash_key=b"k" * 32,
        max_model_len=executor.facts.model_len,
    )


def run(executor: InlineExecutor, requests: list[Request], how: Schedule) -> dict[int, Answer]:
    """Run all requests at once under `how`; the answers of the last round."""
    config = scheduler_config(executor, how)
    facts = executor.facts
    if how.blocks is not None:
        facts = msgspec.structs.replace(facts, num_blocks=how.blocks)
    executor.runner.poison()
    watched = Watched(executor)
    core = EngineCore(Scheduler(config, facts), watched, depth=how.depth)
    answers: dict[int, Answer] = {}
    for round_ in range(how.rounds):
        tokens: dict[int, list[int]] = {}
        scores: dict[int, list[float]] = {}
        for r in requests:
            core.add(Request(r.seq_id + 1000 * round_, r.prompt_ids, r.params, arrival=r.arrival))
        while core.has_work:
            for out in core.step():
                assert out.error is None
                key = out.seq_id % 1000
                tokens.setdefault(key, []).extend(out.new_ids)
                for entry in out.logprobs or []:
                    scores.setdefault(key, []).extend([entry.chosen.logprob, *(t.logprob for t in entry.top)])
        answers = {i: (tuple(tokens[i]), tuple(scores[i])) for i in tokens}
    stats = core.stats()
    assert all(getattr(stats, name) > 0 for name in how.happens), (how, stats)
    assert stats.blocks_used == 0
    assert (watched.most, watched.chained > 0) == (how.depth, how.chain > 1)
    return answers


def make_executor(
    *,
    threads: int,
    kv: Literal["auto", "int8"] = "auto",
    dtype: Literal["auto", "float32"] = "auto",
    blocks: int = 1200,
) -> InlineExecutor:
    """Room for every request at once, small enough to be poisoned often."""
    return InlineExecutor(
        EngineArgs(
            model=str(smollm2()),
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=1024,
            num_kv_blocks=blocks,
            threads=threads,
            kv_cache_dtype=kv,
            dtype=dtype,
        )
    )


@pytest.fixture(scope="module")
def executor() -> Iterator[InlineExecutor]:
    it = make_executor(threads=2)
    yield it
    it.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Prompts of 1 to 700 tokens: contexts cross 128 and 512; half greedy, half sampled; 100 tokens shared by some."""
    lengths = [1, 15, 16, 17, 60, 120, 126, 129, 200, 300, 505, 511, 513, 640, 700, 121]
    return [
        request(i, length=n, temperature=float(i % 2), shared=100 if n > 110 and i % 3 else 0)
        for i, n in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def alone(executor: InlineExecutor, requests: list[Request]) -> dict[int, Answer]:
    truth: dict[int, Answer] = {}
    for r in requests:
        truth |= run(executor, [r], Schedule(budget=2048))
    assert all(len(tokens) == ANSWER for tokens, _ in truth.values())
    assert len({tokens for tokens, _ in truth.values()}) > len(truth) // 2, "the model answers everything alike"
    return truth


CASES = {
    "together": Schedule(),
    "two at a time": Schedule(seqs=2),
    "chunks of 7": Schedule(chunk=7),
    "chunks of 64": Schedule(chunk=64),
    "chunks of 130": Schedule(chunk=130, budget=300),
    "a budget of 64": Schedule(budget=64),
    "cached": Schedule(prefix=True, rounds=2, happens=("prefix_hits",)),
    "cached in chunks": Schedule(prefix=True, rounds=2, chunk=7, budget=64, happens=("prefix_hits",)),
    "preempted": Schedule(blocks=50, budget=128, happens=("preemptions",)),
    "preempted and cached": Schedule(blocks=59, budget=128, prefix=True, happens=("preemptions", "prefix_hits")),
    "two steps in flight": Schedule(depth=2, chain=1, seqs=16),
    "two steps of a sequence in flight": Schedule(
        depth=2, chain=2, blocks=59, budget=128, prefix=True, happens=("preemptions", "prefix_hits")
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_schedule(name: str, executor: InlineExecutor, requests: list[Request], alone: dict[int, Answer]) -> None:
    got = run(executor, requests, CASES[name])
    assert got == alone


def test_batch_of_64(executor: InlineExecutor, requests: list[Request], alone: dict[int, Answer]) -> None:
    many = [Request(100 * k + r.seq_id, r.prompt_ids, r.params, arrival=r.arrival) for k in range(4) for r in requests]
    got = run(executor, many, Schedule(budget=512))
    assert {i: got[i] for i in got} == {100 * k + i: a for k in range(4) for i, a in alone.items()}


def test_prefixes_that_are_read_once_a_step(executor: InlineExecutor) -> None:
    """A span of 512 keys in blocks that several share is one item of attention for all of them."""
    many = [request(i, length=530 + 40 * i, temperature=float(i % 2), shared=528) for i in range(6)]
    truth: dict[int, Answer] = {}
    for r in many:
        truth |= run(executor, [r], Schedule())
    assert run(executor, many, Schedule(prefix=True, rounds=2, budget=64, happens=("prefix_hits",))) == truth
    assert run(executor, many, Schedule(prefix=True, budget=2048, happens=("prefix_hits",))) == truth
    backend: Any = executor.runner.backend
    assert backend.exe.spans_saved >= 3 * 2  # KV heads x those who need not read it, in the last step


def test_one_thread(requests: list[Request], alone: dict[int, Answer]) -> None:
    executor = make_executor(threads=1)
    try:
        assert run(executor, requests, Schedule()) == alone
    finally:
        executor.close()


def test_every_instruction_set(requests: list[Request], alone: dict[int, Answer]) -> None:
    from octavo.kernels import native

    best = native.isa()
    few = [requests[i] for i in (1, 3, 12)]  # the last one's context crosses 512, where attention's spans meet
    try:
        for isa in native.isas():
            native.set_isa(isa)
            executor = make_executor(threads=2)
            try:
                got = run(executor, few, Schedule())
            finally:
                executor.close()
            assert got == {r.seq_id: alone[r.seq_id] for r in few}, isa
    finally:
        native.set_isa(best)


@pytest.mark.parametrize(("kv", "dtype"), [("int8", "auto"), ("auto", "float32")])
def test_other_formats(requests: list[Request], kv: Literal["auto", "int8"], dtype: Literal["auto", "float32"]) -> None:
    """The same promise with a cache of codes, and in the exact mode, on fewer requests."""
    few = [requests[i] for i in (1, 3, 7, 9, 11, 14)]
    executor = make_executor(threads=2, kv=kv, dtype=dtype, blocks=200)
    try:
        truth: dict[int, Answer] = {}
        for r in few:
            truth |= run(executor, [r], Schedule(budget=2048))
        for name in ("together", "chunks of 7", "cached in chunks", "preempted and cached"):
            assert run(executor, few, CASES[name]) == truth, name
    finally:
        executor.close()
    executor = make_executor(threads=1, kv=kv, dtype=dtype, blocks=200)
    try:
        assert run(executor, few, Schedule(chunk=130, budget=300)) == truth
    finally:
        executor.close()


def test_prompt_logprobs_in_tiles(executor: InlineExecutor) -> None:
    """The same scores whole, in chunks, and beside others."""
    base = request(3, length=150, temperature=0.0)
    params = SamplingParams(max_tokens=2, temperature=0.0, seed=1, prompt_logprobs=1, ignore_eos=True)

    def scores(how: Schedule, beside: list[Request]) -> list[float]:
        executor.runner.poison()
        config = scheduler_config(executor, how)
        core = EngineCore(Scheduler(config, executor.facts), executor, depth=1)
        core.add(Request(500, base.prompt_ids, params))
        for r in beside:
            core.add(r)
        found: list[float] = []
        while core.has_work:
            for out in core.step():
                if out.seq_id == 500:
                    found += [s.chosen.logprob for s in out.prompt_logprobs or []]
        return found

    whole = scores(Schedule(), [])
    assert len(whole) == 149
    others = [request(i, length=40, temperature=0.0) for i in range(5)]
    assert scores(Schedule(chunk=7), []) == whole
    assert scores(Schedule(chunk=64, budget=100), others) == whole
