"""A step that fails on the real runner: the guilty request ends alone, and nobody else's answer changes.

tests/unit/sched and tests/properties prove the rule on the fake executor; here the worker's own state (slots, tables,
the KV cache, the kernels' arrays) must survive the failure too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config.args import EngineArgs
from octavo.config.scheduler import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.inline import InlineExecutor
from octavo.sched.scheduler import Scheduler
from octavo.sched.stats import SchedulerStats
from octavo.types import Request, SamplingParams
from tests.engine.conftest import Watched
from tests.tiny import read_tensors, write_safetensors, write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")
GUILTY = 3
BAD = 319
"""A token that only the guilty request's prompt holds: nobody may sample it."""
SHARED = [int(i) for i in np.random.default_rng(9).integers(0, 250, 32)]
"""Two blocks that everybody's prompt begins with, so that the guilty one's blocks are hit too."""
ANSWER = 14
IN_FLIGHT = [(1, 1), (2, 1), (2, 2)]
"""Steps in flight, and how many of them may be of one sequence."""

Answers = dict[int, list[int]]
Errors = dict[int, str]


def requests(*, guilty_prompt: list[int] | None = None) -> list[Request]:
    """Eight prompts of 35 to 66 tokens; one of them asks for its prompt's scores, half are sampled."""
    rng = np.random.default_rng(4)
    made: list[Request] = []
    for i in range(8):
        prompt = SHARED + [int(t) for t in rng.integers(0, 250, 3 + 4 * i + i % 3)]
        if i == GUILTY and guilty_prompt is not None:
            prompt = guilty_prompt
        params = SamplingParams(
            max_tokens=ANSWER,
            temperature=float(i % 2),
            seed=i,
            ignore_eos=True,
            logit_bias={BAD: -100.0},
            prompt_logprobs=1 if i == 5 else None,
        )
        made.append(Request(i, np.asarray(prompt, "<i4").tobytes(), params, arrival=float(i)))
    return made


def make_executor(directory: Path) -> InlineExecutor:
    args = EngineArgs(
        model=str(directory),
        executor="native",
        dtype="float32",
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=256,
        num_kv_blocks=80,
        threads=1,
    )
    return InlineExecutor(args)


def run(
    executor: InlineExecutor, given: list[Request], *, depth: int = 1, chain: int = 1
) -> tuple[Answers, Errors, SchedulerStats]:
    """Token ids of those that ended well, the errors of the others, and the scheduler's numbers at the end."""
    config = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=0,
        enable_prefix_caching=True,
        policy="fcfs",
        chain=chain,
        hash_key=b"k" * 32,
        max_model_len=executor.facts.model_len,
    )
    executor.runner.poison()
    watched = Watched(executor)
    core = EngineCore(Scheduler(config, executor.facts), watched, depth=depth)
    answers: Answers = {}
    errors: Errors = {}
    for r in given:
        assert core.add(r) is None
    while core.has_work:
        for out in core.step():
            if out.error is not None:
                errors[out.seq_id] = out.error
            answers.setdefault(out.seq_id, []).extend(out.new_ids)
    assert (watched.most, watched.chained > 0) == (depth, chain > 1)
    for i in errors:
        del answers[i]
    return answers, errors, core.stats()


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InlineExecutor]:
    it = make_executor(write_tiny(tmp_path_factory.mktemp("failing"), "llama"))
    yield it
    it.close()


@pytest.fixture(scope="module")
def undisturbed(executor: InlineExecutor) -> Answers:
    answers, errors, _ = run(executor, requests())
    assert not errors and sorted(answers) == list(range(8))
    assert all(len(ids) == ANSWER and BAD not in ids for ids in answers.values())
    return answers


def others(answers: Answers) -> Answers:
    return {i: ids for i, ids in answers.items() if i != GUILTY}


def failing(
    monkeypatch: pytest.MonkeyPatch, executor: InlineExecutor, *, when: str, position: int, times: int | None = None
) -> list[int]:
    """From now on forward raises where the guilty request computes from `position` on; a list that grows with each.

    `when`: "before" anything ran, or "after" the real forward wrote the KV cache. `times`: how often at most.
    """
    backend: Any = executor.runner.backend
    real: Callable[..., None] = backend.forward
    mark = np.frombuffer(requests()[GUILTY].prompt_ids, "<i4")
    raised: list[int] = []

    def forward(num_seqs: int, segment: str | None = None) -> None:
        slots, ends = backend.inputs["slot"][:num_seqs], backend.inputs["kv_len"][:num_seqs]
        is_bad = any(
            end > position and np.array_equal(backend.tokens[slot, : len(mark)], mark)
            for slot, end in zip(slots, ends, strict=True)
        )
        broken = is_bad and (times is None or len(raised) < times)
        if not broken or when == "after":
            real(num_seqs, segment)
        if broken:
            raised.append(num_seqs)
            raise RuntimeError("a kernel broke")

    monkeypatch.setattr(backend, "forward", forward)
    return raised


@pytest.mark.parametrize(("depth", "chain"), IN_FLIGHT)
@pytest.mark.parametrize("position", [0, 55])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_guilty_request_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
    executor: InlineExecutor,
    undisturbed: Answers,
    when: str,
    position: int,
    depth: int,
    chain: int,
) -> None:
    """In its prompt, and in the midst of its answer, when its blocks were published long ago."""
    raised = failing(monkeypatch, executor, when=when, position=position)
    answers, errors, stats = run(executor, requests(), depth=depth, chain=chain)
    assert errors.keys() == {GUILTY} and "a kernel broke" in errors[GUILTY]
    assert answers == others(undisturbed)
    assert stats.blocks_used == 0 and stats.running == stats.waiting == 0
    assert len(raised) >= 2 and raised[-1] == 1, "the last to fail was tried alone"
    assert max(raised) > 1, "it failed in company first"
    monkeypatch.undo()
    again, errors, _ = run(executor, requests())
    assert not errors and again == undisturbed, "the worker is as good as new"


@pytest.mark.parametrize(("depth", "chain"), IN_FLIGHT)
def test_an_error_that_passes_costs_nobody_a_request(
    monkeypatch: pytest.MonkeyPatch, executor: InlineExecutor, undisturbed: Answers, depth: int, chain: int
) -> None:
    raised = failing(monkeypatch, executor, when="after", position=40, times=1)
    answers, errors, stats = run(executor, requests(), depth=depth, chain=chain)
    assert len(raised) == stats.failed_steps == 1
    assert not errors and answers == undisturbed and stats.blocks_used == 0


@pytest.mark.parametrize(("depth", "chain"), IN_FLIGHT)
def test_logits_that_are_no_numbers_fail_one_request(
    tmp_path: Path, undisturbed: Answers, depth: int, chain: int
) -> None:
    """A token's embedding is NaN: so is all that the request with it in its prompt computes, and nothing else."""
    directory = write_tiny(tmp_path / "nan", "llama")
    tensors = read_tensors(directory)
    tensors["model.embed_tokens.weight"][BAD] = np.nan
    write_safetensors(directory / "model.safetensors", tensors)
    prompt = [*SHARED, 5, BAD, 7, *range(20)]
    poisoned = make_executor(directory)
    try:
        answers, errors, stats = run(poisoned, requests(guilty_prompt=prompt), depth=depth, chain=chain)
        assert errors.keys() == {GUILTY} and "not finite" in errors[GUILTY]
        assert answers == others(undisturbed)
        assert stats.blocks_used == 0 and stats.failed_steps == 0
    finally:
        poisoned.close()
