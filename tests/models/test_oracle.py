"""SmolLM2 against the oracle (transformers, fp32): greedy ids and top-5 logprobs in float32, quality as it is served.

All twenty prompts to the end, on the reference and natively, and the quality as served; `-m "not slow"` leaves those
out and runs four prompts for a few tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from octavo.program.executable import ExecutableSpec
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import Sequence1, lowered, native_backend
from tests.models_at_hand import smollm2

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "smollm2-135m-instruct-q4_1.json").read_text())
PROMPTS: dict[str, dict[str, Any]] = {p["name"]: p for p in ORACLE["prompts"]}
QUICK = ("short_fact", "raw_continuation", "one_char", "repetition")
TOLERANCE = 1e-3
LENGTH = 2048
BLOCKS = LENGTH // 16 + 1

Start: TypeAlias = Callable[[], Any]
"""Makes (or empties) an executable whose slot 0 is free."""

pytestmark = pytest.mark.model


def spec_of(checkpoint: Any, dtype: str, backend: str) -> ExecutableSpec:
    return lowered(checkpoint, dtype=dtype, backend=backend, max_len=LENGTH, max_tokens=256)


@pytest.fixture(scope="module")
def reference() -> Start:
    checkpoint = open_checkpoint(smollm2())
    spec = spec_of(checkpoint, "float32", "reference")
    weights = load_weights(spec, checkpoint.tensors)
    return lambda: ReferenceExecutable(spec, weights, num_blocks=BLOCKS)


@pytest.fixture(scope="module")
def native(request: pytest.FixtureRequest) -> Iterator[tuple[str, Start]]:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    checkpoint = open_checkpoint(smollm2())
    backend = native_backend(spec_of(checkpoint, request.param, "native"), checkpoint, num_blocks=BLOCKS)
    backend.columns["temperature"][0] = 0

    def start() -> Any:
        backend.poison()
        return backend

    yield request.param, start
    backend.close()


def reproduce(
    executable: Any, prompt: dict[str, Any], steps: int, *, tolerance: float, num_blocks: int = BLOCKS
) -> None:
    """Greedy steps; the oracle's own ids are fed, so one near-tie does not end the comparison."""
    sequence = Sequence1(executable, num_blocks=num_blocks)
    ids = prompt["prompt_ids"]
    for step, expected in enumerate(prompt["greedy_ids"][:steps]):
        sequence.compute(ids, rows=1, chunk=256)
        executable.sample(1)
        top = prompt["top5_first16"][step] if step < len(prompt["top5_first16"]) else []
        for token, logprob in top:
            assert abs(executable.logprobs(0, token, 0)[0] - logprob) < tolerance, (prompt["name"], step, token)
        chosen, _, _, values = executable.logprobs(0, expected, 2)
        if int(executable.sampled[0]) != expected:
            assert values[0] - chosen < tolerance, f"{prompt['name']}: step {step} differs beyond a near-tie"
        ids = [expected]


def mean_nll(executable: Any, ids: list[int], *, num_blocks: int = BLOCKS) -> float:
    """Of ids[1:], given what comes before each."""
    sequence = Sequence1(executable, num_blocks=num_blocks)
    total = 0.0
    for first in range(0, len(ids) - 1, 256):
        piece = ids[first : min(first + 256, len(ids) - 1)]
        sequence.compute(piece, rows=len(piece), chunk=256)
        total -= sum(executable.logprobs(r, ids[first + r + 1], 0)[0] for r in range(len(piece)))
    return total / (len(ids) - 1)


@pytest.mark.parametrize("name", QUICK)
def test_reference(reference: Start, name: str) -> None:
    reproduce(reference(), PROMPTS[name], 5, tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPTS)
def test_reference_whole(reference: Start, name: str) -> None:
    reproduce(reference(), PROMPTS[name], len(PROMPTS[name]["greedy_ids"]), tolerance=TOLERANCE)


@pytest.mark.parametrize("native", ["float32", "auto"], indirect=True)
@pytest.mark.parametrize("name", QUICK)
def test_native(native: tuple[str, Start], name: str) -> None:
    """float32 is the exact mode. Served (4-bit weights as in the file, 8-bit activations, bfloat16 KV) stays near."""
    dtype, start = native
    reproduce(start(), PROMPTS[name], 16, tolerance=TOLERANCE if dtype == "float32" else 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32"], indirect=True)
@pytest.mark.parametrize("name", PROMPTS)
def test_native_whole(native: tuple[str, Start], name: str) -> None:
    _, start = native
    reproduce(start(), PROMPTS[name], len(PROMPTS[name]["greedy_ids"]), tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["float32", "auto"], indirect=True)
def test_served_quality(native: tuple[str, Start]) -> None:
    """Pooled over the three long prompts: perplexity within 1 % of the oracle's as served, equal to it in float32."""
    dtype, start = native
    names = ("long_chat", "long_chat_shared_prefix", "long_raw")
    got = want = 0.0
    for name in names:
        count = len(PROMPTS[name]["prompt_ids"]) - 1
        got += count * mean_nll(start(), PROMPTS[name]["prompt_ids"])
        want += count * PROMPTS[name]["prompt_mean_nll"]
    total = sum(len(PROMPTS[n]["prompt_ids"]) - 1 for n in names)
    print(f"{dtype}: mean NLL {got / total:.5f}, oracle {want / total:.5f}")
    assert abs(got - want) / total < (1e-4 if dtype == "float32" else 0.01)
