"""What a step is expected to take before one was measured, and the default target that follows from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.config.args import EngineArgs
from octavo.config.resolve import LEAST_TARGET_MS, MOST_TARGET_MS, default_target_ms, resolve
from octavo.errors import ConfigError
from octavo.executor.fake import fake_facts
from octavo.facts import StepCost
from octavo.program.cost import NORM_FLOPS, Step, step_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.expected import OVERHEAD, RATES, expected_cost
from tests.models.harness import TinyCheckpoint, lowered
from tests.tiny import VOCAB, write_tiny


@pytest.fixture
def spec(tmp_path: Path) -> ExecutableSpec:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "qwen2-tied", tokenizer=False))
    return lowered(checkpoint, dtype="auto", quantization="int8", backend="native")


def test_parts_are_the_programs_cost_over_the_rates(spec: ExecutableSpec) -> None:
    cost, rates = expected_cost(spec, isa="avx2", threads=1), RATES["avx2"]
    assert cost.row == pytest.approx((2 * VOCAB * 64 + NORM_FLOPS * 64) / rates.ops)
    heads, kv_heads, d, layers = 2, 1, 32, spec.kv[0].layers
    assert cost.seen == pytest.approx(layers * 4 * heads * d / rates.attend)
    assert cost.read == pytest.approx(layers * 2 * kv_heads * d * 2 / rates.read)
    weights = step_cost(spec, Step(1, 1, 1, 1)).weights
    assert cost.step == pytest.approx(OVERHEAD + weights / rates.read)
    ten, twenty = (step_cost(spec, Step(n, 1, 1, n)).flops for n in (10, 20))
    attended = layers * 4 * heads * d * (sum(range(11, 21)))
    assert cost.token == pytest.approx((twenty - ten - attended) / 10 / rates.ops)


def test_more_threads_and_better_instructions_take_less(spec: ExecutableSpec) -> None:
    def token(isa: str, threads: int) -> float:
        return expected_cost(spec, isa=isa, threads=threads).token

    assert token("avx2", 4) == pytest.approx(token("avx2", 1) / 4)
    assert token("scalar", 1) > token("avx2", 1) > token("avx512vnni", 1)


def test_the_default_target_follows_the_cost() -> None:
    facts = fake_facts()
    assert default_target_ms(facts) == 0, "without a cost there is nothing to plan with"
    tokens = {1e-4: LEAST_TARGET_MS, 4e-4: round(5 + 192 * 0.4), 1e-3: MOST_TARGET_MS}
    large = StepCost(step=0.1, token=1e-4, row=5e-3, read=0, seen=0)
    for token, target in tokens.items():
        cost = StepCost(step=5e-3, token=token, row=1e-4, read=0, seen=0)
        assert default_target_ms(msgspec.structs.replace(facts, step_cost=cost)) == target
    facts = msgspec.structs.replace(facts, step_cost=large)
    assert default_target_ms(facts) == pytest.approx(4 * 105)
    assert resolve(EngineArgs(model="m"), facts).scheduler.target_itl_ms == pytest.approx(420)
    assert resolve(EngineArgs(model="m", target_itl_ms=30.0), facts).scheduler.target_itl_ms == 30.0
    assert resolve(EngineArgs(model="m", target_itl_ms=0), facts).scheduler.target_itl_ms == 0


def test_a_negative_target_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--target-itl-ms: got -1.0, allowed: 0 or more"):
        EngineArgs(model="m", target_itl_ms=-1)
