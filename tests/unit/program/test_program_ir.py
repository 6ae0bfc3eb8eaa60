"""Programs are validated: views inside buffers, shapes that agree, nothing read before it is written."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from octavo.nn import Build, Linear
from octavo.program.builder import Builder
from octavo.program.ir import Act, Gather, Norm, Program, Rows, View

by_assert = pytest.mark.skipif(not __debug__, reason="a bug of ours is an assert, and python -O has none")


def small() -> Program:
    """embed, one norm and one linear, head."""
    b = Builder("small", vocab_size=32, max_len=64)
    with b.segment("embed"):
        h = b.embed(b.linear_weight({"embed.weight": 32}, 16), name="hidden")
    with b.segment("layers.0"):
        x = b.norm(h, b.vector({"norm.weight": 16}), eps=1e-5, name="norm")
        y = Linear(Build(b, "mlp"), 16, parts={"a": 8, "b": 8})(x)
        b.add_to(h, y)
    with b.segment("head"):
        b.head(b.gather(h, name="rows"), b.linear_weight({"embed.weight": 32}, 16))
    return b.build()


def test_a_valid_program_passes() -> None:
    program = small()
    assert [s.name for s in program.segments] == ["embed", "layers.0", "head"]
    assert [op.kind for op in program.ops] == ["embed", "norm", "linear", "add", "gather", "head"]


def test_joined_weight_names_its_tensors() -> None:
    weight = small().weights["mlp.(a+b).weight"]
    assert [(p.tensor, p.rows) for p in weight.parts] == [("mlp.a.weight", 8), ("mlp.b.weight", 8)]
    assert (weight.n, weight.k) == (16, 16)


def test_a_tied_weight_is_one_weight() -> None:
    program = small()
    assert [w.name for w in program.weights.values() if w.kind == "linear"] == ["embed.weight", "mlp.(a+b).weight"]


@by_assert
@pytest.mark.parametrize(
    "view",
    [
        View(0, 8, 1, 16, 16),  # ends outside
        View(0, 0, 3, 8, 8),  # three heads of 8 in 16 columns
        View(0, -1, 1, 16, 16),
        View(0, 0, 2, 4, 8),  # heads overlap
        View(0, 0, 0, 8, 8),
    ],
)
def test_views_outside_their_buffer_are_refused(view: View) -> None:
    program = small()
    norm = program.ops[1]
    assert isinstance(norm, Norm)
    bad = replace(program, ops=(program.ops[0], replace(norm, x=view), *program.ops[2:]))
    with pytest.raises(AssertionError):
        bad.validate()


@by_assert
def test_reading_unwritten_columns_is_refused() -> None:
    program = small()
    bad = replace(program, ops=(program.ops[1], program.ops[0], *program.ops[2:]))
    with pytest.raises(AssertionError, match="unwritten"):
        bad.validate()


@by_assert
def test_half_written_buffers_are_refused() -> None:
    b = Builder("half", vocab_size=8, max_len=8)
    with b.segment("all"):
        h = b.embed(b.linear_weight({"embed.weight": 8}, 8), name="hidden")
        out = b.buffer("out", 8)
        b._ops.append(Act(h.part(0, 4), h.part(4, 4), out.part(0, 4)))
        b.head(b.gather(out, name="rows"), "embed.weight")
    with pytest.raises(AssertionError, match="unwritten columns of out"):
        b.build()


@by_assert
def test_shapes_and_rows_must_agree() -> None:
    program = small()
    gather = program.ops[4]
    assert isinstance(gather, Gather)
    with pytest.raises(AssertionError, match="rows"):
        replace(program, ops=(*program.ops[:4], replace(gather, out=gather.x), program.ops[5])).validate()
    with pytest.raises(AssertionError, match="shapes"):
        weights = {**program.weights, "norm.weight": replace(program.weights["norm.weight"], n=15)}
        replace(program, weights=weights).validate()


@by_assert
def test_segments_cover_every_op() -> None:
    program = small()
    with pytest.raises(AssertionError, match="outside every segment"):
        replace(program, segments=program.segments[:-1]).validate()


@by_assert
def test_view_parts_and_heads() -> None:
    whole = View(3, 0, 1, 12, 12)
    assert list(whole.part(4, 8).split(2).spans()) == [(4, 8), (8, 12)]
    assert whole.split(3).columns == 12
    assert View(0, 2, 3, 10, 4).end == 26
    with pytest.raises(AssertionError):
        whole.part(8, 8)
    with pytest.raises(AssertionError):
        whole.split(5)


@by_assert
def test_redeclaring_a_weight_differently_is_a_bug() -> None:
    b = Builder("x", vocab_size=8, max_len=8)
    b.linear_weight({"w": 8}, 8)
    with pytest.raises(AssertionError, match="twice"):
        b.linear_weight({"w": 8}, 16)


def test_rows_have_their_names() -> None:
    assert [r.value for r in Rows] == ["T", "R", "B"]
