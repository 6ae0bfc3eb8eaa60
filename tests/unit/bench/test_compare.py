"""bench/compare on engines that are not there: order, resuming, void figures, the table, the targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from bench.compare.__main__ import engines_of, main, parser
from bench.compare.engine import Engine, Model
from bench.compare.llama import LlamaServer
from bench.compare.plots import LATENCIES, points
from bench.compare.records import Figures, Record, Session, path_of, read, records
from bench.compare.results import compared, results
from bench.compare.runner import Runner, order
from bench.compare.summary import Line, Spread, lines, number
from bench.compare.table import markdown
from bench.compare.targets import BY_SIZE, target_rows
from bench.compare.vllm import Vllm
from bench.rows import Context, Row
from octavo.errors import EngineDead

MODEL = Model(name="smol")
KEYS = {"W4": ("W4", "W4warm"), "rates": ("rates:0.5", "rates:1.0")}


@dataclass
class Fake:
    name: str
    told: str = "1.0"
    refusal: str | None = None
    caveat: str = ""

    def refuses(self, model: Model) -> str | None:
        return self.refusal

    def weights(self, model: Model) -> Path:
        return Path("weights.gguf")

    def command(self, model: Model, port: int) -> list[str]:
        return [self.name, str(port)]

    def environment(self) -> dict[str, str]:
        return {}

    def version(self) -> str:
        if not self.told:
            raise FileNotFoundError("not installed")
        return self.told


def figures(load: str, value: float) -> dict[str, float]:
    if load == "quality":
        return {"perplexity": value, "tokens": 3000.0}
    keys = {"W1": "out_tok_s", "W2": "decode_tok_s", "W3": "prefill_tok_s", "W5cap": "capacity_req_s"}
    if load == "W5":
        return {"itl_p99_ms": value, "itl_max_ms": 2 * value}
    return {keys.get(load, "seconds"): value, "ttft_p50_s": 0.1, "itl_p50_ms": 1.0, "itl_p99_ms": 2.0}


@dataclass
class FakeProbe:
    """`speed`: engine -> what all its figures are, and then a little more each time."""

    speed: dict[str, float]
    failing: set[str] = field(default_factory=set)
    cached: set[str] = field(default_factory=set)
    calls: list[tuple[str, int, tuple[str, ...], float | None]] = field(default_factory=list)
    after: float = 20.0

    def session(
        self, engine: Engine, model: Model, loads: Sequence[str], *, rep: int, capacity: float | None
    ) -> Session:
        self.calls.append((engine.name, rep, tuple(loads), capacity))
        if engine.name in self.failing:
            raise EngineDead("it died")
        found: Figures = {}
        for load in loads:
            for name in KEYS.get(load, (load,)):
                found[name] = figures(name, self.speed[engine.name] + rep)
                if load in self.cached:
                    found[name]["void"] = 1.0
        return Session(1.5, 200.0, 0.01, 20.0, self.after, "today", found, {"decode_s": 0.005, "prefill_s": 2.0})


def runner(
    out: Path, probe: FakeProbe, *engines: Fake, reference: str = "vllm", told: list[str] | None = None
) -> Runner:
    said = [] if told is None else told
    return Runner(out=out, model=MODEL, engines=engines, probe=probe, reference=reference, tell=said.append)


def test_engines_take_turns_and_another_begins_each_time() -> None:
    a, b = Fake("a"), Fake("b")
    assert [(e.name, rep) for e, rep in order([a, b], 3)] == [
        ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2),
    ]  # fmt: skip


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    probe = FakeProbe({"a": 10, "b": 5}, failing={"b"})
    runner(tmp_path, probe, Fake("a"), Fake("b")).run(["W1", "W2"], 2)
    assert len(probe.calls) == 4
    broken = read(path_of(tmp_path, "b", 1))
    assert broken is not None
    assert "it died" in broken.error

    again = FakeProbe({"a": 99, "b": 5})
    runner(tmp_path, again, Fake("a"), Fake("b")).run(["W1", "W2", "W3"], 2)
    assert again.calls == [
        ("a", 0, ("W3",), None), ("b", 0, ("W1", "W2", "W3"), None),
        ("b", 1, ("W1", "W2", "W3"), None), ("a", 1, ("W3",), None),
    ]  # fmt: skip
    kept = read(path_of(tmp_path, "a", 1))
    assert kept is not None
    assert kept.figures["W1"]["out_tok_s"] == 11
    assert kept.figures["W3"]["prefill_tok_s"] == 100
    assert len(kept.sessions) == 2
    fixed = read(path_of(tmp_path, "b", 0))
    assert fixed is not None
    assert fixed.error == ""


def test_curves_are_measured_once_and_go_on_too(tmp_path: Path) -> None:
    probe = FakeProbe({"octavo": 40, "vllm": 2})
    for _ in range(2):
        runner(tmp_path, probe, Fake("octavo"), Fake("vllm")).run(["W2", "rates"], 2)
    assert [c[:3] for c in probe.calls] == [
        ("vllm", 0, ("W5cap",)), ("octavo", 0, ("W2", "rates")), ("vllm", 0, ("W2", "rates")),
        ("vllm", 1, ("W2",)), ("octavo", 1, ("W2",)),
    ]  # fmt: skip


def test_plots_are_drawn_from_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "smol"
    path_of(folder, "a", 0).parent.mkdir()
    curves: Figures = {}
    for i in range(1, 4):
        curves[f"rates:{i}"] = {k: float(i) for k in ("out_tok_s", *(name for name, _ in LATENCIES))}
        curves[f"batches:{i}"] = {"batch": float(i), "decode_tok_s": 5.0, "prefill_tok_s": 6.0}
    session = Session(1, 2, 0, None, None, "d", curves)
    Record("a", "smol", 0, "1", "w.gguf", ["x"], {}, "", [session]).write(path_of(folder, "a", 0))
    (folder / "about.json").write_text('{"size": "small"}')
    for _ in range(2):
        assert main(["plots", "--out", str(tmp_path), "--to", str(tmp_path / "to")]) == 0
        texts = {p.name: p.read_text() for p in (tmp_path / "to").iterdir()}
    assert set(texts) == {"smol-rates.svg", "smol-batches.svg"}
    assert points(lines(records(folder))[0], "rates", "out_tok_s", "ttft_p50_s") == [(1, 1), (2, 2), (3, 3)]
    assert texts["smol-rates.svg"].startswith("<?xml")


def test_no_curves_no_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(tmp_path, 20, 40, loads=["W1"])
    assert main(["plots", "--out", str(tmp_path)]) == 1
    assert "rates,batches" in capsys.readouterr().err


def test_another_version_is_measured_again_and_the_old_figures_are_kept_aside(tmp_path: Path) -> None:
    probe = FakeProbe({"a": 10})
    runner(tmp_path, probe, Fake("a")).run(["W1"], 1)
    runner(tmp_path, probe, Fake("a", told="1.1")).run(["W1"], 1)
    assert len(probe.calls) == 2
    assert [r.version for r in records(tmp_path)] == ["1.1"]
    assert len(list(tmp_path.glob("*.old"))) == 1


def test_arrivals_are_set_by_the_reference_for_all(tmp_path: Path) -> None:
    probe = FakeProbe({"octavo": 40, "vllm": 2})
    runner(tmp_path, probe, Fake("octavo"), Fake("vllm")).run(["W5"], 2)
    assert probe.calls[0] == ("vllm", 0, ("W5cap",), None)
    assert all(capacity == 2 for _, _, loads, capacity in probe.calls[1:] if loads == ("W5",))
    assert len(probe.calls) == 5


def test_without_the_reference_there_is_no_w5(tmp_path: Path) -> None:
    told: list[str] = []
    probe = FakeProbe({"octavo": 40})
    engines = (Fake("octavo"), Fake("vllm", refusal="no float directory given"), Fake("gone", told=""))
    runner(tmp_path, probe, *engines, told=told).run(["W1", "W5"], 1)
    assert [c[2] for c in probe.calls] == [("W1",)]
    text = "\n".join(told)
    assert "vllm: not run: no float directory given" in text
    assert "gone: not run" in text
    assert "they need vllm" in text


def test_void_figures_are_in_no_table(tmp_path: Path) -> None:
    runner(tmp_path, FakeProbe({"a": 10}, cached={"W1"}), Fake("a")).run(["W1", "W2"], 1)
    (line,) = lines(records(tmp_path))
    assert line.get("W1", "out_tok_s") is None
    assert line.get("W2", "decode_tok_s") == Spread(10, 10, 10, 1)
    assert any("W1 void" in note for note in line.notes)


def test_a_machine_that_changed_is_told(tmp_path: Path) -> None:
    runner(tmp_path, FakeProbe({"a": 10}, after=17), Fake("a")).run(["W1"], 1)
    (line,) = lines(records(tmp_path))
    assert any("disturbed: bandwidth 20.0, then 17.0" in note for note in line.notes)


def test_broken_records_are_named(tmp_path: Path) -> None:
    (tmp_path / "a-0.json").write_text('{"engine": "a"}')
    with pytest.raises(ValueError, match=r"a-0\.json"):
        records(tmp_path)


def compare(
    tmp_path: Path, ours: float, theirs: float, *, loads: Sequence[str] = ("W1", "W2", "W3", "W4", "W5")
) -> None:
    folder = tmp_path / "smol"
    probe = FakeProbe({"octavo": ours, "vllm": theirs, "llama-server": theirs / 2})
    runner(folder, probe, Fake("octavo"), Fake("vllm", caveat="slow start"), Fake("llama-server")).run(loads, 3)
    (folder / "about.json").write_text(json.dumps({"size": "small"}))


def test_the_table_shows_medians_spreads_and_losses(tmp_path: Path) -> None:
    compare(tmp_path, 20, 40)
    (found,) = results(tmp_path)
    text = markdown(found.lines, found.targets)
    assert "| octavo | weights.gguf | 21.0 (20.0–22.0) |" in text
    assert "| W1 output, 32 streams, tok/s | 21.0 | 41.0 | vllm | 1.95 x SLOWER |" in text
    assert "| W4 shared prefix, cold, s | 21.0 | 21.0 | llama-server | 1.00 x shorter |" in text
    assert "- vllm 1.0: slow start" in text


def status(rows: list[Row]) -> dict[str, str]:
    return {r.name: r.status for r in rows}


def test_targets_are_passed_missed_or_not_run(tmp_path: Path) -> None:
    compare(tmp_path, 100, 39)
    (found,) = results(tmp_path)
    rows = status(list(target_rows(found.lines, found.targets, "s")))
    assert len(rows) == 9
    assert rows["W1 output, 32 streams, over the best rival"] == "passed"
    assert rows["W2 decode, one stream, over the best rival"] == "passed"
    assert rows["W4 shared prefix, cold, over the best rival"] == "missed"
    assert rows["W2 share of bytes over bandwidth"] == "missed"  # 101 of 200 tok/s
    assert rows["W5 p99 ITL, of vLLM's at one arrival rate"] == "missed"

    nothing = status(list(target_rows([], BY_SIZE["half"], "s")))
    assert set(nothing.values()) == {"not run"}
    assert len(nothing) == 9


def test_a_disturbed_run_is_noted_beside_its_target(tmp_path: Path) -> None:
    line = Line("octavo", "smol", "1", "w", "", {"W1": {"out_tok_s": Spread(9, 9, 9, 1)}}, {}, ["W1 disturbed: x"])
    rival = Line("b", "smol", "1", "w", "", {"W1": {"out_tok_s": Spread(3, 3, 3, 1)}}, {})
    first = next(target_rows([line, rival], BY_SIZE["small"], "s"))
    assert (first.status, first.value) == ("passed", "3 x")
    assert "disturbed" in first.note


def test_accept_reads_the_latest_records(tmp_path: Path) -> None:
    context = Context(tmp_path, "python", "smollm2", True, None, lambda: "")
    assert [r.status for r in compared(context)] == ["not run"]
    compare(tmp_path / "compare-results", 100, 39)
    assert {r.section for r in compared(context)} == {"Beside rivals: smol"}


def test_perplexity_stands_beside_speed(tmp_path: Path) -> None:
    compare(tmp_path, 100.25, 39, loads=["W1", "quality"])
    (found,) = results(tmp_path)
    assert "| 100.250 |" in markdown(found.lines, found.targets)


def test_numbers_have_no_exponents() -> None:
    assert [number(x) for x in (0.01234, 1.2345, 123.45, 12345.6, 0.0)] == ["0.0123", "1.23", "123", "12,346", "0"]


def test_engines_are_those_with_a_program(tmp_path: Path) -> None:
    words = ["run", "--name", "m", "--vllm-python", "/opt/vllm/bin/python", "--llama-server", "/opt/llama-server"]
    names = [e.name for e in engines_of(parser().parse_args(words))]
    assert names == ["octavo", "llama-server", "vllm", "vllm-w8a8"]
    with pytest.raises(SystemExit, match="openvino"):
        engines_of(parser().parse_args([*words, "--engines", "octavo,openvino"]))


def test_every_engine_says_what_it_lacks(tmp_path: Path) -> None:
    program, gguf = tmp_path / "program", tmp_path / "m.Q4_K_M.gguf"
    program.touch()
    gguf.touch()
    words = ["run", "--name", "m"]
    for flag in ("--vllm-python", "--llama-server", "--openvino-python"):
        words += [flag, str(program)]
    model = Model(name="m", gguf=gguf)
    why = {e.name: e.refuses(model) for e in engines_of(parser().parse_args(words))}
    assert why["octavo"] is None
    assert why["llama-server"] is None
    assert why["vllm"] == "no float directory given"
    assert why["vllm-w8a8"] == "no W8A8 directory given"
    assert "Q4_1" in str(why["openvino"])


def test_an_engine_that_does_not_start_is_told_with_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "llama-server"
    broken.write_text("#!/bin/sh\necho libllama.so.0: cannot open >&2\nexit 127\n")
    broken.chmod(0o755)
    told: list[str] = []
    gguf = tmp_path / "m.gguf"
    gguf.touch()
    Runner(
        out=tmp_path,
        model=Model(name="m", gguf=gguf),
        engines=[LlamaServer(broken, 1)],
        probe=FakeProbe({}),
        reference="vllm",
        tell=told.append,
    ).run(["W1"], 1)
    assert told == [
        "llama-server: not run: it does not tell its version: llama-server ended with code 127: "
        "libllama.so.0: cannot open"
    ]


def test_vllm_is_bound_to_the_cpus_that_taskset_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {5, 2, 3})
    for threads, bound in ((1, "2"), (2, "2,3"), (3, "2,3,5")):
        assert Vllm(Path("python"), threads).environment()["VLLM_CPU_OMP_THREADS_BIND"] == bound


def test_a_record_survives_a_round_trip(tmp_path: Path) -> None:
    record = Record("a", "m", 0, "1", "w", ["x"], {}, "", [Session(1, 2, 0, None, None, "d", {"W1": {"x": 1.0}})])
    path = path_of(tmp_path, "a", 0)
    record.write(path)
    assert read(path) == record
