"""Cost formulas against counts made by hand, and the text that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.program.cost import Cost, Step, op_cost, step_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.explain import explain
from octavo.program.ir import Attend, Embed, Head, KVWrite, Linear
from octavo.quant.table import FORMATS
from tests.models.harness import TinyCheckpoint, lowered
from tests.tiny import VOCAB, write_tiny


@pytest.fixture
def spec(tmp_path: Path) -> ExecutableSpec:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "qwen2-tied", tokenizer=False))
    return lowered(checkpoint, dtype="auto", quantization="int8", backend="native")


def test_linear(spec: ExecutableSpec) -> None:
    op = next(op for op in spec.ops if isinstance(op, Linear))
    cost = op_cost(spec, op, Step.decode(3, 100))
    n, k = (2 + 1 + 1) * 32, 64  # q, k, v
    assert cost.flops == 2 * 3 * n * k
    assert cost.weights == n * (64 + 2 * 2) + 4 * n  # codes, a scale a group, bias
    assert cost.activations == 3 * (128 + 4 * n)  # a q8 row takes 128 bytes
    assert cost.kv == 0


def test_attend_reads_the_context_once_a_sequence(spec: ExecutableSpec) -> None:
    op = next(op for op in spec.ops if isinstance(op, Attend))
    heads, kv_heads, d = 2, 1, 32
    decode = op_cost(spec, op, Step.decode(5, 300))
    assert decode.kv == 5 * 300 * 2 * kv_heads * d * 2
    assert decode.flops == 4 * 5 * 300 * heads * d
    prefill = op_cost(spec, op, Step.prefill(10))
    assert prefill.flops == 4 * (10 * 11 // 2) * heads * d
    write = next(op for op in spec.ops if isinstance(op, KVWrite))
    assert op_cost(spec, write, Step.prefill(10)).kv == 10 * 2 * kv_heads * d * 2


def test_head_runs_on_wanted_rows_only(spec: ExecutableSpec) -> None:
    op = next(op for op in spec.ops if isinstance(op, Head))
    assert op_cost(spec, op, Step(100, 1, 1, 100)).flops == 2 * VOCAB * 64
    nothing = op_cost(spec, op, Step(100, 0, 1, 100))
    assert nothing.flops == nothing.weights == nothing.activations == 0


def test_embed_reads_single_rows(spec: ExecutableSpec) -> None:
    op = next(op for op in spec.ops if isinstance(op, Embed))
    assert op_cost(spec, op, Step.decode(4, 10)).weights == 4 * (64 + 2 * 2)


def test_a_step_is_the_sum_of_its_ops(spec: ExecutableSpec) -> None:
    step = Step.decode(7, 50)
    assert step_cost(spec, step) == sum((op_cost(spec, op, step) for op in spec.ops), Cost())
    more = step_cost(spec, Step.decode(14, 50))
    assert more.weights - step_cost(spec, step).weights < step_cost(spec, step).weights / 4  # read once a step


def test_storage_bytes_of_the_formats() -> None:
    n, k = 20, 100  # two panels of 16, four groups of 32
    assert FORMATS["f32"].storage_bytes(n, k) == 2 * 16 * 100 * 4
    assert FORMATS["bf16"].storage_bytes(n, k) == 2 * 16 * 100 * 2
    assert FORMATS["int8"].storage_bytes(n, k) == 2 * 16 * (128 + 4 * 2)
    assert FORMATS["int8t"].storage_bytes(n, k) == 2 * 16 * (128 + 4)
    assert FORMATS["int4"].storage_bytes(n, k) == 2 * 16 * (64 + 4 * 2)
    assert FORMATS["int4m"].storage_bytes(n, k) == 2 * 16 * (64 + 4 * 4)
    assert FORMATS["int8"].storage_bytes(16, 32) == 576  # a panel of 544 bytes, up to 64


def test_explain_shows_both_levels(spec: ExecutableSpec) -> None:
    text = explain(spec)
    for expected in ("Program Qwen2ForCausalLM", "Executable for native", "Memory", "Cost per step", "(int8)", "q8"):
        assert expected in text
    assert text.count("… 2 more layers like it") == 2
    assert "[layers.2]" in explain(spec, layers=3)
    assert "mlp.act" in text


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize(("tokens", "context"), [(1, 1), (1, 20), (7, 7), (7, 20), (20, 20)])
def test_keys_seen_and_read_behind_a_window(window: int | None, tokens: int, context: int) -> None:
    step = Step(2 * tokens, 2, 2, context)
    seen = [
        set(range(0 if window is None else max(0, p - window + 1), p + 1)) for p in range(context - tokens, context)
    ]
    assert step.visible(window) == 2 * sum(map(len, seen))
    assert step.read(window) == 2 * len(set().union(*seen))
