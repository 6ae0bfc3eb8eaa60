"""Qwen2.5-Coder-0.5B, a Q4_K_M file (Q4_K, Q5_0, Q6_K, Q8_0; untied head), against the oracle (transformers, fp32)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config.args import EngineArgs
from octavo.runner.loader import plan_model
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import native_backend
from tests.models.test_oracle import BLOCKS, TOLERANCE, Start, mean_nll, reproduce, spec_of
from tests.models_at_hand import qwen

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "qwen2.5-coder-0.5b-instruct-q4_k_m.json").read_text())
PROMPTS: dict[str, dict[str, Any]] = {p["name"]: p for p in ORACLE["prompts"]}
QUICK = ("short_fact", "raw_continuation")

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def native(request: pytest.FixtureRequest) -> Iterator[tuple[str, Start]]:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    checkpoint = open_checkpoint(qwen())
    backend = native_backend(spec_of(checkpoint, request.param, "native"), checkpoint, num_blocks=BLOCKS)
    backend.columns["temperature"][0] = 0

    def start() -> Any:
        backend.poison()
        return backend

    yield request.param, start
    backend.close()


def test_it_runs_at_the_size_of_its_file() -> None:
    """Every type of the file has a format of about its own size, joins of q, k and v included."""
    path = qwen()
    planned = plan_model(EngineArgs(model=str(path)), open_checkpoint(path))
    assert set(planned.formats.by_weight.values()) == {"int4k", "int5", "int6k", "int8"}
    assert 0.97 < planned.spec.weights_bytes / path.stat().st_size < 1.03


@pytest.mark.parametrize("native", ["auto"], indirect=True)
@pytest.mark.parametrize("name", QUICK)
def test_served(native: tuple[str, Start], name: str) -> None:
    _, start = native
    reproduce(start(), PROMPTS[name], 8, tolerance=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PROMPTS)
def test_native_whole(native: tuple[str, Start], name: str) -> None:
    """float32 is the exact mode: the oracle's ids and logprobs."""
    _, start = native
    reproduce(start(), PROMPTS[name], len(PROMPTS[name]["greedy_ids"]), tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32", "auto"], indirect=True)
def test_served_quality(native: tuple[str, Start]) -> None:
    """Pooled over the long prompts: mean NLL within 1 % of the oracle's as served, equal to it in float32."""
    dtype, start = native
    names = [n for n in PROMPTS if n.startswith("long_")]
    got = want = 0.0
    for name in names:
        count = len(PROMPTS[name]["prompt_ids"]) - 1
        got += count * mean_nll(start(), PROMPTS[name]["prompt_ids"])
        want += count * PROMPTS[name]["prompt_mean_nll"]
    total = sum(len(PROMPTS[n]["prompt_ids"]) - 1 for n in names)
    print(f"{dtype}: mean NLL {got / total:.5f}, oracle {want / total:.5f}")
    assert abs(got - want) / total < (1e-4 if dtype == "float32" else 0.01)
