"""The crowd of R15 in small: what it opens is open, what it leaves is left, and too few files are said."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import crowd
from bench.rows import Context

ROOT = Path(__file__).parents[3]


@pytest.fixture
def files() -> Iterator[None]:
    """Limits as they were, afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], limits[1]), limits[1]))


def test_a_small_crowd_is_held_refused_and_released(files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "OPEN", 30)
    monkeypatch.setattr(crowd, "PROBES", 10)
    monkeypatch.setattr(crowd, "LIMIT_MS", 5_000.0)  # other tests share the machine
    monkeypatch.setattr(crowd, "FLAT", 100.0)
    context = Context(ROOT, sys.executable, "fake", False, None, lambda: "fake")
    rows = list(crowd.crowd(context))
    assert [row.status for row in rows] == ["passed"] * len(rows), rows
    assert {row.value for row in rows} >= {"30", "10 of 10", "0 open, 0 files"}


def test_a_server_that_is_not_well_is_a_missed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, nine of whose ten answers to /health are a 200."""
    answers = iter([200] * 4 + [503] + [200] * 5)

    def probe(server: Any, path: str, body: Any = None) -> tuple[int, str | None, float]:
        return (next(answers), None, 0.001) if path == "/health" else (503, "1", 0.001)

    monkeypatch.setattr(crowd, "PROBES", 10)
    monkeypatch.setattr(crowd, "Crowd", lambda port, count: nullcontext(SimpleNamespace(lost=0)))
    for name, value in (("_probe", probe), ("_open_requests", lambda server, wanted: wanted)):
        monkeypatch.setattr(crowd, name, value)
    server: Any = SimpleNamespace(pid=os.getpid(), metrics=lambda: {"kv_cache_usage_perc": 0})
    rows = {row.name: row for row in crowd._held(server, 1, again=False)}
    well = rows["... /health is a 200 meanwhile"]
    assert (well.status, well.value, well.target) == ("missed", "9 of 10", "10 of 10")
    assert rows["... one more is a 503 with Retry-After"].status == "passed"


def test_too_few_files_are_a_reason_not_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    context = Context(ROOT, sys.executable, "fake", True, None, lambda: "fake")
    (row,) = crowd.crowd(context)
    assert row.status == "not run"
    assert row.note == "needs 10,512 open files, and the hard limit is 4,096"
