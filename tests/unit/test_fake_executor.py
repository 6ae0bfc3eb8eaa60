"""The fake executor is the schedulers' oracle: its rules are the runner's."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from octavo.executor.fake import fake_answer, fake_facts
from octavo.runner.runner import Runner
from octavo.types import Request, SamplingParams

FACTS = fake_facts(vocab_size=8, eos_ids=(2, 7))
LEAST = 30


class Columns:
    """Of a backend: what the runner writes for a slot."""

    def __init__(self) -> None:
        names = "temperature top_k top_p min_p presence frequency repetition seed num_prompt min_tokens"
        self.columns = {name: np.zeros(1, np.uint64 if name == "seed" else np.float64) for name in names.split()}
        self.stops: list[int] = []

    def set_bias(self, slot: int, ids: Any, values: Any) -> None:
        """Nothing here is biased."""

    def set_stops(self, slot: int, ids: Any) -> None:
        self.stops = sorted(ids.tolist())


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("stops", [(), (3,)])
def test_what_min_tokens_bans(ignore_eos: bool, stops: tuple[int, ...]) -> None:
    params = SamplingParams(
        min_tokens=LEAST, max_tokens=300, seed=1, temperature=1, ignore_eos=ignore_eos, stop_token_ids=stops
    )
    columns: Any = Columns()
    Runner(columns, FACTS, max_seqs=1, max_rows=1, max_blocks=1)._set_columns(0, params, num_prompt=1)
    banned = {*range(8)} - {*(t for seed in range(20) for t in _answer(params, seed)[:LEAST])}
    assert banned == {*columns.stops} == {2, 7, *stops}


def _answer(params: SamplingParams, seed: int) -> list[int]:
    request = Request(seed, array("i", [seed % 8, seed // 8]).tobytes(), params)
    return fake_answer(request, facts=FACTS, limit=1000)
