"""Joined linears of mixed files: split where joining would cost bytes, and only there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from octavo.models.registry import build_program
from octavo.program import split
from octavo.program.ir import Linear, Program
from octavo.program.split import split_joins
from octavo.quant.table import FORMATS, Wishes, choose
from tests.tiny import tiny_config


@dataclass(frozen=True)
class Stored:
    source: str


def program() -> Program:
    return build_program(tiny_config("qwen2", hidden_size=512, intermediate_size=1024, num_hidden_layers=2))


def tensors(whole: Program, *, v: str, rest: str = "q4_k") -> dict[str, Stored]:
    return {
        part.tensor: Stored("f32" if w.kind == "vec" else v if "v_proj" in part.tensor else rest)
        for w in whole.weights.values()
        for part in w.parts
    }


def linears(p: Program, layer: int) -> list[Linear]:
    span = next(s for s in p.segments if s.name == f"layers.{layer}")
    return [op for op in p.ops[span.first : span.end] if isinstance(op, Linear)]


def test_a_mixed_join_becomes_a_linear_a_format() -> None:
    whole = program()
    cut = split_joins(whole, tensors(whole, v="q6_k"), Wishes())
    for layer in range(2):
        (old, *others), (qk, v, *same) = linears(whole, layer), linears(cut, layer)
        assert others == same, "gate+up and the rest stay joined"
        assert [p.tensor.split(".")[-2] for p in cut.weights[qk.weight].parts] == ["q_proj", "k_proj"]
        assert [p.tensor.split(".")[-2] for p in cut.weights[v.weight].parts] == ["v_proj"]
        covered = np.zeros(old.out.width, int)
        for op in (qk, v):
            assert op.x == old.x and op.out.columns == cut.weights[op.weight].n
            assert op.bias is not None and cut.weights[op.bias].n == op.out.columns
            covered[op.out.offset - old.out.offset : op.out.end - old.out.offset] += 1
        assert (covered == 1).all()
        assert old.weight not in cut.weights and old.bias not in cut.weights
    sources = {name: [tensors(whole, v="q6_k")[p.tensor].source for p in w.parts] for name, w in cut.weights.items()}
    formats = {choose(sources[op.weight], Wishes()).format for layer in range(2) for op in linears(cut, layer)}
    assert formats == {"int4k", "int6k"}


@pytest.mark.parametrize(("v", "rest"), [("q4_k", "q4_k"), ("q5_k", "q4_k")])
def test_what_is_not_worth_a_stage_stays_joined(v: str, rest: str) -> None:
    whole = program()
    assert split_joins(whole, tensors(whole, v=v, rest=rest), Wishes()) is whole


def test_one_format_asked_for_is_one_linear() -> None:
    whole = program()
    assert split_joins(whole, tensors(whole, v="q6_k"), Wishes(dtype="float32")) is whole
    assert split_joins(whole, tensors(whole, v="f16", rest="bf16"), Wishes(quantization="int8")) is whole


def test_the_limit_is_bytes_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = program()
    stored = tensors(whole, v="q8_0", rest="q5_0")
    name = next(n for n in whole.weights if "q_proj+k_proj+v_proj).weight" in n)
    k = whole.weights[name].k
    q_k = sum(p.rows for p in whole.weights[name].parts[:2])
    saved = FORMATS["int8"].storage_bytes(q_k, k) - FORMATS["int5"].storage_bytes(q_k, k)
    monkeypatch.setattr(split, "WORTH", saved)
    assert len(split_joins(whole, stored, Wishes()).ops) == len(whole.ops) + 2
    monkeypatch.setattr(split, "WORTH", saved + 1)
    assert split_joins(whole, stored, Wishes()) is whole


def test_a_missing_tensor_is_left_to_choose_formats() -> None:
    whole = program()
    stored = tensors(whole, v="q6_k")
    del stored["model.layers.0.self_attn.k_proj.weight"]
    assert len(linears(split_joins(whole, stored, Wishes()), 0)) == len(linears(whole, 0))
