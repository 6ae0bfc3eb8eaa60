"""Stages matched to ops, shares of limits, void readings, and whole benches on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("octavo._native", reason="the native module is not built")

from octavo.bench import ops, steps
from octavo.bench.stages import Stage, match
from octavo.cli import main as entry
from octavo.cli.errors import OK, USAGE
from octavo.config.args import EngineArgs
from octavo.program.cost import Step, op_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.ir import inner
from octavo.runner.loader import plan_model
from octavo.weights.checkpoint import open_checkpoint
from tests.tiny import write_tiny

READ = 10e9


class StillMeter:
    """A machine that gives the same at every reading, or what it is told."""

    def __init__(self, *readings: float) -> None:
        self.readings = list(readings)

    def read(self) -> float:
        return self.readings.pop(0) if self.readings else READ

    def peak(self, fmt: str, *, activation: str = "") -> float:
        return 1e12

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny"), "llama"))


@pytest.fixture(scope="module")
def args(model: str) -> EngineArgs:
    return EngineArgs(model=model, dtype="float32", threads=1)


@pytest.fixture(scope="module")
def spec(args: EngineArgs) -> ExecutableSpec:
    return plan_model(args, open_checkpoint(args.model)).spec


def test_every_op_is_timed_and_has_its_limit(args: EngineArgs, spec: ExecutableSpec) -> None:
    shapes = [Step(2, 2, 2, 20), Step(8, 1, 1, 8)]
    (found,) = ops.measure(args, shapes, [1], meter=lambda isa, threads: StillMeter())
    assert [(c.tokens, c.seqs, c.context, c.void) for c in found.cells] == [(2, 2, 20, ()), (8, 1, 8, ())]
    for cell in found.cells:
        labels = " ".join(r.op for r in cell.rows)
        assert all(word in labels for word in ("attend", "embed", "kv_write", "down_proj", "norm", "head"))
        assert all(r.ms > 0 for r in cell.rows)
        assert sum(r.ms for r in cell.rows) == pytest.approx(cell.ms)
        down = next(r for r in cell.rows if "down_proj" in r.op)
        op = next(o for o in spec.ops if "down_proj" in getattr(o, "weight", ""))
        one = op_cost(spec, op, Step(cell.tokens, 1, cell.seqs, cell.context))
        layers = spec.kv[0].layers
        assert down.count == layers
        assert down.limit_ms == pytest.approx(1e3 * layers * max(one.weights / READ, one.flops / 1e12))
        assert down.share == pytest.approx(down.limit_ms / down.ms)


def test_a_lone_sequence_may_fill_its_last_block(args: EngineArgs) -> None:
    (found,) = ops.measure(args, [Step(1, 1, 1, 2 * args.block_size)], [1], meter=lambda isa, threads: StillMeter())
    assert [c.context for c in found.cells] == [2 * args.block_size]


def test_readings_that_differ_make_a_cell_void(args: EngineArgs) -> None:
    shapes = [Step(1, 1, 1, 4), Step(2, 2, 2, 4)]
    meter = StillMeter(10e9, 10.9e9, 12.1e9)
    (found,) = ops.measure(args, shapes, [1], meter=lambda isa, threads: meter)
    assert [c.void for c in found.cells] == [(), ("read",)]
    first, second = ([r for r in c.rows if r.bound == "memory"] for c in found.cells)
    assert first
    assert second
    assert all(r.share is not None and not r.void for r in first)
    assert all(r.share is None and r.void for r in second)


def test_void() -> None:
    def reading(at: float, read: float, peak: float = 5.0) -> ops.Reading:
        return ops.Reading(at, {"read": read, "f32": peak})

    assert ops.void_limits(reading(0, 10.0), 10.0, 12.0, reading(22.0, 11.0)) == ()
    assert ops.void_limits(reading(0, 10.0), 10.1, 12.0, reading(13.0, 10.0)) == ("read", "f32")  # too long before
    assert ops.void_limits(reading(0, 10.0), 1.0, 2.0, reading(12.1, 10.0)) == ("read", "f32")  # too long after
    assert ops.void_limits(reading(0, 11.1), 1.0, 2.0, reading(3.0, 10.0)) == ("read",)  # too different, either way
    assert ops.void_limits(reading(0, 10.0), 1.0, 2.0, reading(3.0, 11.1)) == ("read",)
    assert ops.void_limits(reading(0, 10.0), 1.0, 2.0, reading(3.0, 10.0, 6.0)) == ("f32",)


def test_a_share_is_the_time_of_the_binding_limit(spec: ExecutableSpec) -> None:
    op = inner(next(o for o in spec.ops if "down_proj" in getattr(o, "weight", "")))
    stages = [(Stage("linear x", (op,), "f32"), 2e-3), (Stage("linear x", (op,), "f32"), 4e-3)]
    step = Step.decode(1, 8)
    cost = op_cost(spec, op, step)
    (row,) = ops.rows_of(spec, stages, step, limits={"read": 1e6, "f32": 1e15}, cache_bytes=1 << 30)
    assert (row.count, row.bound) == (2, "memory")
    assert row.ms == pytest.approx(6.0)
    assert row.share == pytest.approx(2 * cost.weights / 1e6 / 6e-3)
    (row,) = ops.rows_of(spec, stages, step, limits={"read": 1e15, "f32": 1e6}, cache_bytes=1 << 30)
    assert row.bound == "compute"
    assert row.share == pytest.approx(2 * cost.flops / 1e6 / 6e-3)
    (row,) = ops.rows_of(spec, stages, step, limits={"read": 1e15, "f32": 1e6}, void=["f32"], cache_bytes=1 << 30)
    assert (row.share, row.void) == (None, True)
    # A cache too small for its activations: they are traffic too.
    (row,) = ops.rows_of(spec, stages, step, limits={"read": 1e6, "f32": 1e15}, cache_bytes=0)
    assert row.limit_ms == pytest.approx(2e3 * cost.bytes / 1e6)


@pytest.mark.skipif(not __debug__, reason="a bug of ours is an assert, and python -O has none")
def test_stages_without_an_op_are_known_and_others_refused(spec: ExecutableSpec) -> None:
    with pytest.raises(AssertionError, match="has no op"):
        match(spec, ["attend"])
    with pytest.raises(AssertionError, match="belong to no stage"):
        match(spec, [])


def test_steps_are_split(args: EngineArgs) -> None:
    found = steps.split(args, streams=[1, 4], prompt=12, steps=3, prefill=40)
    one, four, prefill = found
    assert (one.tokens, one.steps, four.tokens, four.steps) == (1, 3, 4, 3)
    assert (prefill.streams, prefill.tokens) == (1, 40)
    for split in found:
        assert set(split.engine) == set(steps.ENGINE)
        assert set(split.front) == set(steps.FRONT)
        assert all(v > 0 for k, v in split.engine.items() if k != "gaps")
        assert all(v > 0 for v in split.front.values())
        assert split.ms == pytest.approx(sum(split.engine.values()))
        assert 0 < split.in_kernels < 1
        assert split.away >= 0
        assert 0 < split.python < 1


def test_kernels_from_the_command_line(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    words = ["--dtype", "float32", "--bench-threads", "1", "--decode", "2", "--prefill", "0", "--context", "16"]
    assert entry.main(["bench", "kernels", model, *words, "--result-filename", str(out)]) == OK
    text = capsys.readouterr().out
    assert "2 tokens in 2 sequences, context 16" in text
    body = json.loads(out.read_text())
    assert set(body["threads"][0]) == {"threads", "isa", "peaks", "cells"}
    cell = body["threads"][0]["cells"][0]
    assert set(cell) == set(ops.Cell.__struct_fields__)
    assert set(cell["rows"][0]) == set(ops.Row.__struct_fields__)


def test_step_from_the_command_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dtype", "float32", "--threads", "1", "--streams", "2", "--steps", "2", "--prompt-len", "5"]
    assert entry.main(["bench", "step", model, *words, "--prefill-len", "0", "--json"]) == OK
    (split,) = json.loads(capsys.readouterr().out)["splits"]
    assert set(split) == {*steps.Split.__struct_fields__, "ms", "in_kernels", "python"}
    assert entry.main(["bench", "step", model, *words, "--prefill-len", "0"]) == OK
    assert "in kernels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kernels", "m", "--executor", "fake"], "allowed: native"),
        (["kernels", "m", "--decode", "0", "--prefill", "0"], "no shape"),
        (["kernels", "m", "--context", "x"], "--context: got 'x'"),
        (["step", "m", "--executor", "reference"], "allowed: native"),
        (["step", "m", "--streams", "0"], "--streams: got '0'"),
        (["step", "m", "--steps", "0"], "--steps: got 0"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["bench", *words]) == USAGE
    assert says in capsys.readouterr().err
