"""The least time of a step, and the machine's limits it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main as entry
from octavo.cli.errors import OK, USAGE
from octavo.config.args import EngineArgs
from octavo.kernels import limits as limits_module
from octavo.kernels.limits import Limits, machine_limits
from octavo.program.cost import Step, step_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.roofline import Machine, roofline, roofline_text, weight_formats
from octavo.runner.loader import plan_model
from octavo.runner.timing import time_step
from octavo.weights.checkpoint import open_checkpoint
from tests import homes
from tests.tiny import write_tiny

FORMATS = {"f32": "f32"}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny", "llama")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes.make_home(tmp_path / "home", monkeypatch)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures in no time."""
    monkeypatch.setattr(limits_module, "SECONDS", 0.0)
    monkeypatch.setattr(limits_module, "best", lambda call: (call(), 1e-3)[1])


def planned(path: Path) -> ExecutableSpec:
    return plan_model(EngineArgs(model=str(path)), open_checkpoint(path)).spec


def test_a_slow_memory_binds_by_bytes_and_slow_arithmetic_by_operations(tiny: Path) -> None:
    spec, step = planned(tiny), Step.decode(4, 100)
    cost = step_cost(spec, step)
    slow_memory = roofline(spec, step, Machine(read=1e6, peaks={"f32": 1e18}, cache_bytes=1 << 40))
    assert slow_memory.seconds == pytest.approx((cost.weights + cost.kv) / 1e6)
    assert slow_memory.bytes == cost.weights + cost.kv and not slow_memory.activations
    slow_sums = roofline(spec, step, Machine(read=1e18, peaks={"f32": 1e6}, cache_bytes=1 << 40))
    assert slow_sums.seconds == pytest.approx(cost.flops / 1e6, rel=1e-6) and slow_sums.flops == cost.flops
    assert {line.bound for line in slow_memory.lines if line.bytes} == {"memory"}
    assert {line.bound for line in slow_sums.lines if line.flops and line.bytes} == {"compute"}


def test_an_ops_time_is_the_larger_of_both_and_never_below_either(tiny: Path) -> None:
    spec, step = planned(tiny), Step(tokens=64, rows=1, seqs=1, context=64)
    both = roofline(spec, step, Machine(read=1e9, peaks={"f32": 1e9}, cache_bytes=1 << 40))
    assert both.seconds >= max(both.bytes / 1e9, both.flops / 1e9)
    assert both.seconds == pytest.approx(sum(line.seconds for line in both.lines))


def test_activations_count_where_they_outgrow_the_cache(tiny: Path) -> None:
    spec, step = planned(tiny), Step.prefill(200)
    spilled = roofline(spec, step, Machine(read=1e9, peaks={"f32": 1e12}, cache_bytes=0))
    assert spilled.activations and spilled.bytes == step_cost(spec, step).bytes


def test_the_text(tiny: Path) -> None:
    spec, machine = planned(tiny), Machine(read=1e9, peaks={"f32": 1e9}, cache_bytes=1 << 40)
    found = roofline(spec, Step.decode(2, 10), machine)
    text = roofline_text(found, machine, measured=2 * found.seconds)
    assert "a step of 2 tokens in 2 sequences, context 10" in text and "50 % of the limit" in text
    for kind in ("linear", "attend", "head", "total"):
        assert f"\n  {kind}" in text


@pytest.mark.usefixtures("quick")
def test_limits_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new/limits.json"
    found = machine_limits(FORMATS, threads=1, file=file)
    assert found.read > 0 and set(found.peaks) == {"f32"} and found.threads == 1
    monkeypatch.setattr(limits_module.Meter, "__init__", None)  # a second measurement would fail
    assert machine_limits(FORMATS, threads=1, file=file) == found
    with pytest.raises(TypeError):
        machine_limits(FORMATS, threads=2, file=file)
    with pytest.raises(TypeError):
        machine_limits(FORMATS, threads=1, file=file, remeasure=True)


@pytest.mark.usefixtures("quick")
def test_another_build_of_the_kernels_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "limits.json"
    machine_limits(FORMATS, threads=1, file=file)
    machine_limits(FORMATS, threads=2, file=file)
    before = json.loads(file.read_text())
    monkeypatch.setattr(limits_module, "_module", lambda: "another module")
    machine_limits(FORMATS, threads=1, file=file)
    after = json.loads(file.read_text())
    gone, come = set(before) - set(after), set(after) - set(before)
    assert len(before) == len(after) == 2
    assert [" 1 threads" in key for key in (*gone, *come)] == [True, True], "the old one makes room, two threads stay"


@pytest.mark.usefixtures("quick")
def test_a_format_that_is_missing_is_added(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    first = machine_limits(FORMATS, threads=1, file=file)
    more = machine_limits({**FORMATS, "int8": "q8", "bf16": "bf16", "int4m": "q8"}, threads=1, file=file)
    assert set(more.peaks) == {"f32", "int8", "bf16", "int4m"}
    assert more.read == first.read and more.peaks["f32"] == first.peaks["f32"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": {"cpu": 1}}'])
def test_a_damaged_file_is_measured_anew(text: str, tmp_path: Path) -> None:
    file = homes.write(tmp_path / "limits.json", text)
    assert isinstance(machine_limits(FORMATS, threads=1, file=file), Limits)
    assert json.loads(file.read_text())
    machine_limits(FORMATS, threads=1, file=file.parent / "limits.json" / "cannot be")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = entry.main(["explain", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("quick")
def test_explain(tiny: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(tiny), "--tokens", "8", "--seqs", "4", "--context", "100")
    assert code == OK and "8 tokens in 4 sequences, context 100" in out and "tokens/s" in out
    assert (home / ".cache/octavo/limits.json").exists()
    code, out, _ = run(capsys, str(tiny), "--tokens", "512", "--json")
    body: dict[str, Any] = json.loads(out)
    (step,) = body["steps"]
    assert step["step"] == {"tokens": 512, "rows": 1, "seqs": 1, "context": 1024}
    assert step["total"]["seconds"] == pytest.approx(sum(op["seconds"] for op in step["ops"]))
    assert body["machine"]["peaks"] and body["memory_bytes"]["weights"] > 0
    assert len(json.loads(run(capsys, str(tiny), "--json")[1])["steps"]) == 3


@pytest.mark.usefixtures("quick", "home")
def test_explain_of_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = homes.write(tmp_path / "m.gguf", homes.model_bytes())
    code, out, err = run(capsys, str(path), "--context", "100")
    assert code == OK, err
    assert "1 tokens in 1 sequences, context 100" in out


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tokens", "7", "--seqs", "2"], "a multiple of --seqs (2)"),
        (["--tokens", "64", "--context", "8"], "the step's own 64 tokens a sequence"),
        (["--tokens", "0"], "--tokens: got 0"),
        (["--measure"], "with --tokens or --context"),
        (["--context", "99999"], "allowed: up to 2048"),
    ],
)
def test_mistakes(words: list[str], says: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(tiny), *words)
    assert code == USAGE and says in err


def test_a_step_is_timed_for_real(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runner.timing.SECONDS", 0.05)
    args = EngineArgs(model=str(tiny), executor="reference", max_num_seqs=4)
    groups = len(planned(tiny).kv)
    assert 0 < time_step(args, Step(tokens=4, rows=2, seqs=2, context=40), groups=groups) < 30


def test_weight_formats(tiny: Path) -> None:
    assert weight_formats(planned(tiny)) == {"f32": "f32"}
