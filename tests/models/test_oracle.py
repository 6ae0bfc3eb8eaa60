"""SmolLM2 in float32 on the reference against the oracle (transformers, fp32): greedy ids and top-5 logprobs.

By default four prompts and a few tokens; `-m slow` runs all twenty to the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from octavo.program.executable import ExecutableSpec
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import Sequence1, lowered
from tests.models_at_hand import smollm2

ORACLE = json.loads((Path(__file__).parents[1] / "data" / "smollm2-135m-instruct-q4_1.json").read_text())
PROMPTS: dict[str, dict[str, Any]] = {p["name"]: p for p in ORACLE["prompts"]}
QUICK = ("short_fact", "raw_continuation", "one_char", "repetition")
TOLERANCE = 1e-3
LENGTH = 2048

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> tuple[ExecutableSpec, Mapping[str, NDArray[Any]]]:
    checkpoint = open_checkpoint(smollm2())
    spec = lowered(checkpoint, max_len=LENGTH, max_tokens=256)
    return spec, load_weights(spec, checkpoint.tensors)


def reproduce(model: tuple[ExecutableSpec, Mapping[str, NDArray[Any]]], prompt: dict[str, Any], steps: int) -> None:
    """Greedy steps; the oracle's own ids are fed, so one near-tie does not end the comparison."""
    spec, weights = model
    blocks = spec.limits.max_blocks + 1
    executable = ReferenceExecutable(spec, weights, num_blocks=blocks)
    sequence = Sequence1(executable, num_blocks=blocks)
    ids = prompt["prompt_ids"]
    for step, expected in enumerate(prompt["greedy_ids"][:steps]):
        sequence.compute(ids, rows=1, chunk=256)
        executable.sample(1)
        top = prompt["top5_first16"][step] if step < len(prompt["top5_first16"]) else []
        for token, logprob in top:
            assert abs(executable.logprobs(0, token, 0)[0] - logprob) < TOLERANCE, (prompt["name"], step, token)
        chosen, _, _, values = executable.logprobs(0, expected, 2)
        if int(executable.sampled[0]) != expected:
            assert values[0] - chosen < TOLERANCE, f"{prompt['name']}: step {step} differs beyond a near-tie"
        ids = [expected]


@pytest.mark.parametrize("name", QUICK)
def test_quick(model: tuple[ExecutableSpec, Mapping[str, NDArray[Any]]], name: str) -> None:
    reproduce(model, PROMPTS[name], 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPTS)
def test_whole(model: tuple[ExecutableSpec, Mapping[str, NDArray[Any]]], name: str) -> None:
    reproduce(model, PROMPTS[name], len(PROMPTS[name]["greedy_ids"]))
