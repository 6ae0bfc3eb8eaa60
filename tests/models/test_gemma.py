"""Gemma 3 270M against the oracle (transformers, fp32): greedy ids past the 512 window, quality as it is served."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import lowered, native_backend
from tests.models.test_oracle import mean_nll, reproduce
from tests.models_at_hand import gemma

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "gemma-3-270m-base-q4_k_m.json").read_text())
PROMPTS: dict[str, dict[str, Any]] = {p["name"]: p for p in ORACLE["prompts"]}
LENGTH = 2048
BLOCKS = 6 * (LENGTH // 16) + 1
GAP = 1e-3

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def native(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], Any]]]:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    checkpoint = open_checkpoint(gemma())
    spec = lowered(checkpoint, dtype=request.param, backend="native", max_len=LENGTH, max_tokens=256)
    backend = native_backend(spec, checkpoint, num_blocks=BLOCKS, threads=2)
    backend.columns["temperature"][0] = 0

    def start() -> Any:
        backend.poison()
        return backend

    yield request.param, start
    backend.close()


@pytest.mark.parametrize("native", ["float32"], indirect=True)
@pytest.mark.parametrize("name", ["short_fact", "code_raw", "repetition", "long_raw"])
def test_float32_ids(native: tuple[str, Callable[[], Any]], name: str) -> None:
    """long_raw has 1,503 tokens: five layers of six see its last third."""
    reproduce(native[1](), PROMPTS[name], 16, tolerance=GAP, num_blocks=BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PROMPTS)
def test_float32_ids_of_all_prompts(native: tuple[str, Callable[[], Any]], name: str) -> None:
    steps = len(PROMPTS[name]["greedy_ids"])
    reproduce(native[1](), PROMPTS[name], steps, tolerance=GAP, num_blocks=BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32", "auto"], indirect=True)
def test_served_quality(native: tuple[str, Callable[[], Any]]) -> None:
    """Pooled over the long prompts: perplexity within 1 % of the oracle's as served, equal to it in float32."""
    dtype, start = native
    got = want = total = 0.0
    for name in ("long_chat", "long_chat_shared_prefix", "long_raw"):
        count = len(PROMPTS[name]["prompt_ids"]) - 1
        got += count * mean_nll(start(), PROMPTS[name]["prompt_ids"], num_blocks=BLOCKS)
        want += count * PROMPTS[name]["prompt_mean_nll"]
        total += count
    print(f"{dtype}: mean NLL {got / total:.5f}, oracle {want / total:.5f}")
    off = (got - want) / total
    assert abs(off) < 1e-4 if dtype == "float32" else off < 0.01
