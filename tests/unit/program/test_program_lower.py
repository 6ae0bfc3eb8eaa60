"""Lowering: fusions that drop stores but no rounding, dtypes, casts, dead stores, places, host ops."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.kernels import BACKENDS, OPS
from octavo.models.registry import build_program
from octavo.program.executable import ExecutableSpec, Limits, row_bytes
from octavo.program.formats import choose_formats
from octavo.program.host import HostedExecutable
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.program.ir import Add, Cast, Host, Linear, Norm, Program, Rope, reads, writes
from octavo.program.lower import lower
from octavo.quant.table import Wishes
from tests.models.harness import Sequence1, TinyCheckpoint, all_logits, lowered
from tests.tiny import VOCAB, write_tiny

IDS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 45)]
LIMITS = Limits(max_tokens=64, max_rows=64, max_seqs=4, max_len=128, block_size=16)


@pytest.fixture
def checkpoint(tmp_path: Path) -> TinyCheckpoint:
    return TinyCheckpoint.open(write_tiny(tmp_path, "qwen2", tokenizer=False))


def kinds(spec: ExecutableSpec) -> list[str]:
    return [op.kind for op in spec.ops]


@pytest.mark.parametrize(
    "wishes",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "auto", "quantization": "int8"}],
    ids=["float32", "bfloat16", "int8"],
)
def test_fusions_change_no_bit(checkpoint: TinyCheckpoint, wishes: dict[str, Any]) -> None:
    """The same arithmetic in fewer ops and less memory: every rounding a dtype states is still there."""
    plain = lowered(checkpoint, backend="reference", **wishes)
    fused = lowered(checkpoint, backend="native", **wishes)
    weights = load_weights(plain, checkpoint.tensors)
    assert len(fused.ops) < len(plain.ops)
    assert fused.arena_bytes <= plain.arena_bytes
    got, want = (all_logits(spec, weights, IDS, chunk=20) for spec in (fused, plain))
    assert (got == want).all()


def test_sharing_memory_changes_no_bit(checkpoint: TinyCheckpoint) -> None:
    shared = lowered(checkpoint, backend="native")
    apart = _lower(checkpoint, replace(BACKENDS["native"], reuses=False))
    weights = load_weights(shared, checkpoint.tensors)
    assert shared.arena_bytes < apart.arena_bytes / 2
    got, want = (all_logits(spec, weights, IDS, chunk=20) for spec in (shared, apart))
    assert (got == want).all()


def test_residual_adds_and_ropes_are_fused(checkpoint: TinyCheckpoint) -> None:
    spec = lowered(checkpoint, backend="native")
    assert "add" not in kinds(spec)
    accumulating = [op for op in spec.ops if isinstance(op, Linear) and op.accumulate]
    assert len(accumulating) == 2 * 3
    assert {spec.buffers[op.out.buffer].name for op in accumulating} == {"hidden"}
    ropes = [op for op in spec.ops if isinstance(op, Rope)]
    assert [op.x.heads for op in ropes] == [4 + 2] * 3


def test_a_scaled_residual_add_is_fused_with_its_scale(checkpoint: TinyCheckpoint) -> None:
    program = build_program(checkpoint.config)
    scaled = tuple(replace(op, scale=0.25) if isinstance(op, Add) else op for op in program.ops)
    fused, plain = (
        _lower(checkpoint, replace(BACKENDS["native"], fuses=fuses), program=replace(program, ops=scaled))
        for fuses in (True, False)
    )
    assert "add" not in kinds(fused) and kinds(plain).count("add") == 6
    assert {op.scale for op in fused.ops if isinstance(op, Linear) and op.accumulate} == {0.25}
    weights = load_weights(fused, checkpoint.tensors)
    got, want = (all_logits(spec, weights, IDS, chunk=20) for spec in (fused, plain))
    assert (got == want).all()
    assert not (got == all_logits(lowered(checkpoint, backend="native"), weights, IDS, chunk=20)).all()


def test_no_linear_accumulates_into_its_own_input(checkpoint: TinyCheckpoint) -> None:
    program = build_program(checkpoint.config)
    at = next(i for i, op in enumerate(program.ops) if isinstance(op, Add))
    add = program.ops[at]
    assert isinstance(add, Add)
    weight = next(w for w in program.weights.values() if w.kind == "linear" and w.n == w.k == add.out.columns)
    y = replace(add.b, buffer=len(program.buffers))
    more = replace(
        program,
        buffers=(*program.buffers, replace(program.buffers[add.b.buffer], name="square")),
        ops=(*program.ops[: at + 1], Linear(add.out, y, weight.name), replace(add, b=y), *program.ops[at + 1 :]),
        segments=tuple(
            replace(s, first=s.first + 2 * (s.first > at), end=s.end + 2 * (s.end > at)) for s in program.segments
        ),
    )
    more.validate()
    for op in _lower(checkpoint, BACKENDS["native"], program=more).ops:
        assert not isinstance(op, Linear) or op.x.buffer != op.out.buffer


def test_a_stated_rounding_stops_the_fusion(checkpoint: TinyCheckpoint) -> None:
    program = build_program(checkpoint.config)
    y = next(op.b.buffer for op in program.ops if isinstance(op, Add))
    buffers = list(program.buffers)
    buffers[y] = replace(buffers[y], dtype="bf16")
    spec = _lower(checkpoint, BACKENDS["native"], program=replace(program, buffers=tuple(buffers)))
    assert kinds(spec).count("add") == 1
    assert next(b.dtype for b in spec.buffers if b.name == buffers[y].name) == "bf16"


def test_buffers_take_what_their_linears_want(checkpoint: TinyCheckpoint) -> None:
    spec = lowered(checkpoint, dtype="auto", quantization="int8", backend="native")
    dtypes = {b.name.split(".")[-1]: b.dtype for b in spec.buffers}
    assert dtypes["hidden"] == dtypes["logits"] == dtypes["rows"] == "f32"
    assert dtypes["input_layernorm"] == dtypes["norm"] == dtypes["act"] == "q8"
    assert dtypes["q_proj+k_proj+v_proj"] == "f32"
    # A head is 16 wide: q8 groups of 32 would straddle heads, so attention writes f32 and a cast follows.
    assert dtypes["attend"] == "f32"
    assert kinds(spec).count("cast") == 3


def test_wide_heads_are_written_as_codes(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", head_dim=32, tokenizer=False))
    spec = lowered(checkpoint, dtype="auto", quantization="int8", backend="native")
    assert "cast" not in kinds(spec)
    assert {b.dtype for b in spec.buffers if b.name.endswith("attend")} == {"q8"}


def test_a_backend_without_direct_outputs_gets_casts(checkpoint: TinyCheckpoint) -> None:
    table = replace(BACKENDS["native"], outputs={"cast": ("bf16", "q8")})
    spec = _lower(checkpoint, table, wishes=Wishes(quantization="int8"))
    for op in spec.ops:
        for view in writes(op):
            assert isinstance(op, Cast) or spec.buffers[view.buffer].dtype == "f32"
    direct = _lower(checkpoint, BACKENDS["native"], wishes=Wishes(quantization="int8"))
    weights = load_weights(spec, checkpoint.tensors)
    got, want = (all_logits(s, weights, IDS, chunk=45) for s in (spec, direct))
    assert (got == want).all()


def test_dead_stores_are_dropped(checkpoint: TinyCheckpoint) -> None:
    program = build_program(checkpoint.config)
    norm = next(op for op in program.ops if isinstance(op, Norm))
    extra = replace(norm, out=replace(norm.out, buffer=len(program.buffers)))
    buffers = (*program.buffers, replace(program.buffers[writes(norm)[0].buffer], name="unread"))
    at = program.ops.index(norm)
    ops = (*program.ops[: at + 1], extra, *program.ops[at + 1 :])
    segments = tuple(replace(s, first=s.first + (s.first > at), end=s.end + (s.end > at)) for s in program.segments)
    more = replace(program, ops=ops, buffers=buffers, segments=segments)
    more.validate()
    spec = _lower(checkpoint, BACKENDS["native"], program=more)
    assert "unread" not in [b.name for b in spec.buffers]
    assert len(spec.ops) == len(_lower(checkpoint, BACKENDS["native"]).ops)


def test_segments_are_half_open_ranges(checkpoint: TinyCheckpoint) -> None:
    spec = lowered(checkpoint, backend="native")
    assert spec.segments["embed"] == (0, 1)
    assert spec.segments["layers"] == (spec.segments["layers.0"][0], spec.segments["layers.2"][1])
    assert spec.segments["head"] == (spec.segments["layers"][1], len(spec.ops))


def test_live_buffers_never_share_bytes(checkpoint: TinyCheckpoint) -> None:
    spec = lowered(checkpoint, dtype="auto", quantization="int8", backend="native")
    last = {}
    for i, op in enumerate(spec.ops):
        for view in [*reads(op), *writes(op)]:
            last[view.buffer] = i
    last[spec.logits] = len(spec.ops)
    alive: list[int] = []
    for i, op in enumerate(spec.ops):
        alive += [v.buffer for v in writes(op) if v.buffer not in alive]
        ranges = sorted((spec.buffers[b].offset, spec.buffers[b].offset + spec.buffers[b].size) for b in alive)
        assert all(a[1] <= b[0] for a, b in pairwise(ranges))
        assert not ranges or ranges[-1][1] <= spec.arena_bytes
        alive = [b for b in alive if last[b] > i]


def test_the_head_can_run_again(checkpoint: TinyCheckpoint) -> None:
    """prompt_logprobs: embed and layers once, then the head over tiles of rows."""
    spec = _lower(checkpoint, BACKENDS["native"], limits=replace(LIMITS, max_rows=8))
    weights = load_weights(spec, checkpoint.tensors)
    blocks = spec.limits.max_blocks + 1
    executable = ReferenceExecutable(spec, weights, num_blocks=blocks)
    sequence = Sequence1(executable, num_blocks=blocks)
    sequence.compute(IDS, rows=0, chunk=64)
    tiles = []
    for first in range(0, len(IDS), 8):
        count = min(8, len(IDS) - first)
        executable.inputs["rows"][0], executable.inputs["skip"][0] = count, len(IDS) - first - count
        executable.forward(1, "head")
        tiles += [executable.logits(r).copy() for r in range(count)]
    want = all_logits(lowered(checkpoint, backend="native"), weights, IDS, chunk=64)
    assert np.abs(np.stack(tiles) - want).max() < 1e-5


def test_native_spec_is_flat_and_in_bounds(checkpoint: TinyCheckpoint) -> None:
    spec = lowered(checkpoint, backend="native")
    names = [w.weight.name for w in spec.weights]
    flat = spec.native({n: 64 * i for i, n in enumerate(names)}, kv=(0, 7), arena=None)
    widths = {"view": 5}
    for op in flat["ops"]:
        assert len(op) == 1 + sum(widths.get(how, 1) for _, how in OPS[op[0]])
        assert all(isinstance(x, int | float) for x in op[1:])
    assert flat["weights"][1] == ("vec", 64, 1, 64)
    assert flat["kv"][0]["num_blocks"] == 7
    assert flat["kv"][0]["block_bytes"] == spec.kv[0].block_bytes == 2 * 3 * 16 * 2 * 16 * 4
    for dtype, width, rows, offset, times in flat["buffers"]:
        assert offset % 64 == 0
        assert offset + spec.limits.rows(rows) * times * row_bytes(dtype, width) <= spec.arena_bytes


def test_row_bytes() -> None:
    assert row_bytes("f32", 1) == 64
    assert row_bytes("bf16", 33) == 128
    assert row_bytes("q8", 32) == 64
    assert row_bytes("q8t", 24) == 64
    assert row_bytes("q8t", 57) == 128
    assert row_bytes("q8", 576) == -(-(576 + 8 * 18) // 64) * 64
    assert row_bytes("q8", 100) == -(-(128 + 8 * 4) // 64) * 64


class DeviceOnly:
    """Stands for a native Executable: runs device pieces by name, and cannot run a host op."""

    def __init__(self, spec: ExecutableSpec, weights: dict[str, NDArray[np.float32]], *, num_blocks: int) -> None:
        self.reference = ReferenceExecutable(spec, weights, num_blocks=num_blocks)
        self.pieces = {p.name: p for p in spec.pieces()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reference, name)

    def forward(self, num_seqs: int, segment: str | None = None) -> None:
        piece = self.pieces[segment or ""]
        assert not any(isinstance(op, Host) for op in self.reference.spec.ops[piece.first : piece.end])
        self.reference.spec = replace(
            self.reference.spec, segments={**self.reference.spec.segments, piece.name: (piece.first, piece.end)}
        )
        self.reference.forward(num_seqs, piece.name)


def test_host_ops_fill_the_gaps(checkpoint: TinyCheckpoint) -> None:
    """A backend without act and norm: the Executable is cut there and the answer is the same."""
    table = replace(BACKENDS["native"], kinds=frozenset(OPS) - {"act", "norm"})
    spec = _lower(checkpoint, table)
    assert spec.notes == tuple(
        f"{kind}: not in the native backend; the reference computes it (slow)" for kind in ("act", "norm")
    )
    assert all(not isinstance(spec.ops[p.first], Host) or p.host for p in spec.pieces())
    flat = spec.native({w.weight.name: 0 for w in spec.weights}, kv=(0, 2), arena=None)
    assert {op[0] for op in flat["ops"]}.isdisjoint({"act", "norm", "host"})
    assert max(end for _, end in flat["segments"].values()) == len(flat["ops"])

    weights = load_weights(spec, checkpoint.tensors)
    blocks = spec.limits.max_blocks + 1
    device = DeviceOnly(spec, weights, num_blocks=blocks)
    hosted = HostedExecutable(device, spec, device.reference.arena, checkpoint.tensors)
    sequence = Sequence1(hosted, num_blocks=blocks)
    sequence.compute(IDS, rows=len(IDS), chunk=64)
    got = np.stack([device.reference.logits(r) for r in range(len(IDS))])
    want = all_logits(lowered(checkpoint, backend="native"), weights, IDS, chunk=64)
    assert (got == want).all()


def _lower(
    checkpoint: TinyCheckpoint,
    table: Any,
    *,
    program: Program | None = None,
    wishes: Wishes = Wishes(dtype="float32"),
    limits: Limits = LIMITS,
) -> ExecutableSpec:
    program = program or build_program(checkpoint.config)
    formats = choose_formats(program, checkpoint.tensors, wishes)
    return lower(program, formats.by_weight, limits, table, kv_dtype="f32")
