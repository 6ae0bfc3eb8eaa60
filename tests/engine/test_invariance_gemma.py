"""The promise on a real model with windows: Gemma's bits past position 512 do not depend on the schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.config.args import EngineArgs
from octavo.executor.inline import InlineExecutor
from octavo.types import Request
from tests.engine.test_invariance_model import ANSWER, Answer, Schedule, request, run
from tests.models_at_hand import gemma

pytestmark = pytest.mark.model
LENGTHS = [40, 505, 513, 640, 900, 1300]


@pytest.fixture(scope="module")
def executor() -> Iterator[InlineExecutor]:
    args = EngineArgs(
        model=str(gemma()), max_num_seqs=16, max_num_batched_tokens=512, max_model_len=1536, num_kv_blocks=3000
    )
    it = InlineExecutor(args)
    yield it
    it.close()


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Half greedy, half sampled; 600 tokens shared by the longest three: what they share ends behind the window."""
    return [request(i, length=n, temperature=float(i % 2), shared=600 if n > 600 else 0) for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def alone(executor: InlineExecutor, requests: list[Request]) -> dict[int, Answer]:
    truth: dict[int, Answer] = {}
    for r in requests:
        truth |= run(executor, [r], Schedule(budget=512))
    assert all(len(tokens) == ANSWER for tokens, _ in truth.values())
    assert len({tokens for tokens, _ in truth.values()}) > len(truth) // 2, "the model answers everything alike"
    return truth


CASES = {
    "together": Schedule(),
    "chunks of 64": Schedule(chunk=64),
    "chunks of 130": Schedule(chunk=130, budget=300),
    "cached": Schedule(prefix=True, rounds=2, happens=("prefix_hits",)),
    "preempted": Schedule(blocks=410, budget=128, happens=("preemptions",)),
    "preempted and cached": Schedule(blocks=420, budget=128, prefix=True, happens=("preemptions", "prefix_hits")),
}


@pytest.mark.parametrize("name", CASES)
def test_schedule(name: str, executor: InlineExecutor, requests: list[Request], alone: dict[int, Answer]) -> None:
    assert run(executor, requests, CASES[name]) == alone
