"""Mixtures of experts in the Program: what is refused, how it is lowered, what it costs, what --quantization leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from octavo.program.builder import Builder
from octavo.program.cost import Cost, Step, op_cost
from octavo.program.executable import ExecutableSpec, row_bytes
from octavo.program.explain import explain
from octavo.program.formats import choose_formats
from octavo.program.ir import Combine, ExpertLinear, Program, Route
from octavo.quant.table import FORMATS, Wishes
from tests.models.harness import TinyCheckpoint, lowered
from tests.tiny import write_tiny

E, K, WIDTH, INNER = 8, 3, 64, 32


@pytest.fixture
def checkpoint(tmp_path: Path) -> TinyCheckpoint:
    return TinyCheckpoint.open(write_tiny(tmp_path, "qwen3-moe", tokenizer=False, dtype="bfloat16"))


@pytest.fixture
def spec(checkpoint: TinyCheckpoint) -> ExecutableSpec:
    return lowered(checkpoint, dtype="auto", quantization="int8", backend="native")


def sparse(b: Builder, *, router: int = E) -> Program:
    """Embed, one mixture, head."""
    with b.segment("embed"):
        h = b.embed(b.linear_weight({"embed": 16}, WIDTH), name="hidden")
    with b.segment("layers.0"):
        logits = b.linear(h, b.linear_weight({"gate": router}, WIDTH), None, name="router")
        ids, weights = b.route(logits, K, norm=True, factor=1.0, name="route")
        up = b.expert_weight("up", [{f"{e}.up": INNER} for e in range(E)], WIDTH)
        down = b.expert_weight("down", [{f"{e}.down": WIDTH} for e in range(E)], INNER)
        y = b.expert_linear(b.expert_linear(h, ids, up, name="in"), ids, down, name="out")
        b.add_to(h, b.combine(y, weights, name="combine"))
    with b.segment("head"):
        b.head(b.gather(h, name="rows"), b.linear_weight({"head": 16}, WIDTH))
    return b.build()


@pytest.mark.skipif(not __debug__, reason="a bug of ours is an assert, and python -O has none")
def test_rows_and_shapes_must_agree() -> None:
    program = sparse(Builder("sparse", vocab_size=16, max_len=8))
    by_kind = {op.kind: (i, op) for i, op in enumerate(program.ops)}
    buffers = {b.name: i for i, b in enumerate(program.buffers)}
    assert program.buffers[buffers["in"]].times == K and program.buffers[buffers["combine"]].times == 1
    i, combine = by_kind["combine"]
    assert isinstance(combine, Combine)
    wrong = [
        replace(combine, weights=replace(combine.weights, buffer=buffers["route.ids"], width=2)),
        replace(combine, x=replace(combine.out)),
    ]
    j, route = by_kind["route"]
    assert isinstance(route, Route)
    for at, op in [(i, wrong[0]), (i, wrong[1]), (j, replace(route, ids=route.out))]:
        broken = replace(program, ops=(*program.ops[:at], op, *program.ops[at + 1 :]))
        with pytest.raises(AssertionError):
            broken.validate()


def test_experts_of_different_shapes_are_a_bug() -> None:
    with pytest.raises(ValueError):
        Builder("b", vocab_size=16, max_len=8).expert_weight("w", [{"a": 4}, {"b": 5}], 8)


def test_lowering_keeps_routing_exact_and_experts_quantised(spec: ExecutableSpec) -> None:
    formats = {w.weight.name: w.format for w in spec.weights}
    assert formats["model.layers.0.mlp.gate.weight"] == "bf16"  # --quantization leaves routers alone
    for op in spec.ops:
        if isinstance(op, ExpertLinear):
            assert formats[op.weight] == "int8"
            assert spec.buffers[op.x.buffer].dtype == "q8"
            assert spec.buffers[op.ids.buffer].dtype == "i32"
        if isinstance(op, Route):
            assert spec.buffers[op.x.buffer].dtype == spec.buffers[op.out.buffer].dtype == "f32"


def test_memory_counts_every_expert_and_every_row(spec: ExecutableSpec) -> None:
    gate_up = next(w for w in spec.weights if w.weight.name == "model.layers.0.mlp.experts.(gate_proj+up_proj)")
    assert (gate_up.n, gate_up.k, gate_up.weight.experts) == (2 * INNER, WIDTH, E)
    assert gate_up.stride == FORMATS["int8"].storage_bytes(2 * INNER, WIDTH)
    assert gate_up.bytes == E * gate_up.stride
    rows = next(b for b in spec.buffers if b.name == "model.layers.0.mlp.experts.in")
    assert rows.size == spec.limits.max_tokens * K * row_bytes("f32", 2 * INNER)


def test_cost_reads_the_experts_that_are_visited(spec: ExecutableSpec) -> None:
    op = next(op for op in spec.ops if isinstance(op, ExpertLinear))
    stride = FORMATS["int8"].storage_bytes(2 * INNER, WIDTH)
    one = op_cost(spec, op, Step.decode(1, 100))
    assert one.weights == K * stride
    assert one.flops == 2 * K * 2 * INNER * WIDTH
    two = op_cost(spec, op, Step.decode(2, 100))
    assert K * stride < two.weights < 2 * K * stride  # they share some
    many = op_cost(spec, op, Step.prefill(500))
    assert many.weights == E * stride
    assert many.flops == 500 * one.flops
    combine = next(op for op in spec.ops if isinstance(op, Combine))
    cost = op_cost(spec, combine, Step.decode(1, 100))
    assert cost == Cost(flops=2 * K * WIDTH, activations=K * 4 * WIDTH + 64 + 4 * WIDTH)


def test_formats_say_what_happens_to_routers(checkpoint: TinyCheckpoint) -> None:
    program = lowered(checkpoint).program
    formats = choose_formats(program, checkpoint.tensors, Wishes(quantization="int4"))
    assert {formats.by_weight[f"model.layers.{i}.mlp.gate.weight"] for i in range(3)} == {"bf16"}
    assert formats.by_weight["model.layers.0.mlp.experts.down_proj"] == "int4m"
    assert any("kept as it is: 3 tensors" in line for line in formats.lines)


def test_explain_shows_routing(spec: ExecutableSpec) -> None:
    text = explain(spec)
    for expected in ("route(", "expert_linear(", "combine(", f"[{K}·T, {2 * INNER}]", "experts=8"):
        assert expected in text
