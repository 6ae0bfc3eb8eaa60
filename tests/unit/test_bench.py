"""The acceptance table's own arithmetic: loads, medians, verdicts, promises."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("aiohttp")

from aiohttp import web  # noqa: E402  (after the skips above)

from bench import load, promises, rows  # noqa: E402  (after the skips above)

ROOT = Path(__file__).parents[2]
ASKS = web.AppKey("asks", list)


async def completions(request: web.Request) -> web.StreamResponse:
    """A server that answers every token with "x", the last one with a finish reason, and knows one prefix."""
    body = await request.json()
    assert body["ignore_eos"]
    assert body["temperature"] == 0
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    request.app[ASKS].append(body["prompt"])
    for _ in range(body["max_tokens"]):
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
    usage["prompt_tokens_details"] = {"cached_tokens": 1024 if len(body["prompt"]) == 1056 else 0}
    last = {"choices": [{"text": "", "finish_reason": "length"}], "usage": usage}
    await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def measured(names: list[str]) -> tuple[load.Figures, list[list[int]]]:
    app = web.Application()
    app[ASKS] = []
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        found = await load.measure(f"http://127.0.0.1:{port}", "m", names)
    finally:
        await runner.cleanup()
    return found, app[ASKS]


def test_loads_do_what_they_say() -> None:
    found, asks = asyncio.run(measured(["W1", "W2", "W3", "W4"]))
    assert set(found) == {"W1", "W2", "W3", "W4", "W4warm"}
    assert found["W1"]["requests"] == 64
    assert found["W1"]["events_per_token"] == 1
    assert found["W2"]["requests"] == 3
    assert found["W4warm"]["cached_tokens"] == 32 * 1024
    assert "void" not in found["W3"]
    sizes = [len(a) for a in asks]
    assert sizes.count(2048) == 2
    assert sizes.count(1056) == 64
    shared = {tuple(a[:1024]) for a in asks if len(a) == 1056}
    assert len(shared) == 1
    assert all(1000 <= t < 45000 for a in asks for t in a)


def test_prompts_depend_on_workload_and_repetition_only() -> None:
    random = np.random.default_rng(2000)
    expected = random.integers(1000, 45000, 128).tolist()
    _, asks = asyncio.run(measured(["W2"]))
    assert expected in asks


def test_medians_and_verdicts() -> None:
    runs: list[load.Figures] = [{"W1": {"a": 1.0}}, {"W1": {"a": 5.0}}, {"W1": {"a": 2.0}}]
    assert load.median(runs) == {"W1": {"a": 2.0}}
    assert rows.at_least("s", "n", 3, 3, "x").status == "passed"
    assert rows.at_most("s", "n", 3.1, 3, "x").status == "missed"
    assert rows.below("s", "n", float("nan"), 3, "x").status == "missed"


def test_promises_name_tests_that_are_there() -> None:
    """A test that gets another name must not take its promise along."""
    found = promises.promises(ROOT / "bench" / "promises.toml")
    assert len(found) > 30
    for promise in found:
        for test in promise.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), test
            assert not name or f"def {name}" in (ROOT / path).read_text(), test


def test_every_mechanism_of_the_engine_has_a_row() -> None:
    """Construction (A1 to A10), the step loop, scheduling, the forward pass, chunked prefill and prefix caching."""
    rows = {promise.row for promise in promises.promises(ROOT / "bench" / "promises.toml")}
    assert rows >= {*(f"A{i}" for i in range(1, 11)), "B", "C", "D", "E1", "E2", "G10"}


def test_reports_are_matched_to_promises(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase file="tests/a/test_b.py" name="test_one[x]"/>'
        '<testcase file="tests/a/test_b.py" name="test_two"><failure/></testcase>'
        '<testcase classname="tests.a.test_c" name="test_three"><skipped/></testcase>'
        '<testcase classname="" name="tests.a.test_d"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    found = promises.parse(report)
    assert {k: (v.passed, v.failed, v.skipped) for k, v in found.items()} == {
        "tests/a/test_b.py::test_one[x]": (1, 0, 0),
        "tests/a/test_b.py::test_two": (0, 1, 0),
        "tests/a/test_c.py::test_three": (0, 0, 1),
        "tests/a/test_d.py::tests.a.test_d": (0, 0, 1),
    }
    assert promises._matches("tests/a/test_b.py::test_one[x]", "tests/a/test_b.py::test_one")
    assert promises._matches("tests/a/test_b.py::test_one[x]", "tests/a")
    assert not promises._matches("tests/ab/test_b.py::test_one", "tests/a")


def test_a_promise_passes_only_by_what_ran() -> None:
    def row(tests: tuple[str, ...], **outcomes: promises.Outcome) -> rows.Row:
        found = {f"tests/a/test_b.py::test_{name}[x]": outcome for name, outcome in outcomes.items()}
        return promises.verdict(promises.Promise("s", "R1", "t", tests), found)

    passed, failed, skipped = promises.Outcome(passed=1), promises.Outcome(failed=1), promises.Outcome(skipped=2)
    file, one, two = "tests/a/test_b.py", "tests/a/test_b.py::test_one", "tests/a/test_b.py::test_two"
    some = row((file,), one=passed, two=skipped)
    assert (some.status, some.note) == ("passed", "1 passed, 2 skipped")
    assert row((file,), one=skipped).status == "not run"
    apart = row((file, "tests/a/test_c.py"), one=passed)
    assert apart.status == "not run" and "no such test: tests/a/test_c.py" in apart.note, (
        "one file does not do for both"
    )
    assert row((file,), one=passed, two=failed).status == "missed"
    named = row((one, two), one=passed, two=skipped)
    assert named.status == "not run" and "1 passed, 2 skipped" in named.note and "test_two" in named.note
    gone = row((one, two), one=passed)
    assert gone.status == "not run" and "no such test" in gone.note
    assert row((one, two), one=failed, two=skipped).status == "missed"
    assert row((one,), one=passed).note == "1 passed, 0 skipped"


def test_promises_use_the_users_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = rows.Context(ROOT, "python", "m", True, None, lambda: str(tmp_path / "fetched" / "m.gguf"))
    monkeypatch.setenv("OCTAVO_TEST_MODELS", str(tmp_path))
    assert promises.models_folder(context) == str(tmp_path)
    monkeypatch.delenv("OCTAVO_TEST_MODELS")
    assert promises.models_folder(context) == str(tmp_path / "fetched")
