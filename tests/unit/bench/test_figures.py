"""Rows of the loads beside a rival: W1 to W4, the rival's W4 of one repetition, and what is missing said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("aiohttp")

from bench import figures, load
from bench.rows import Context

KEYS = ("out_tok_s", "decode_tok_s", "prefill_tok_s", "seconds")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """Nothing is served: loads take as long as the repetition says. What was asked of whom is kept."""
    calls: list[tuple[int, tuple[str, ...]]] = []

    @contextlib.contextmanager
    def serve(command: Sequence[str], **_: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(url="http://rival")

    async def measure(url: str, model: str, names: Sequence[str], *, rep: int) -> load.Figures:
        calls.append((rep, tuple(names)))
        await asyncio.sleep(0)
        if "W4" in names and rep == 7:
            raise RuntimeError("out of slots")
        names = [*names, "W4warm"] if "W4" in names else names
        return {name: dict.fromkeys(KEYS, 200.0) for name in names}

    monkeypatch.setattr(figures, "serve", serve)
    monkeypatch.setattr(load, "measure", measure)
    return calls


def context(rival: str | None) -> Context:
    return Context(Path(), "python", "m", False, rival, lambda: "m")


def test_the_rival_runs_w4_in_one_repetition(asked: list[tuple[int, tuple[str, ...]]]) -> None:
    runs = [figures._rival(context("llama-server"), rep) for rep in range(3)]
    assert [names for rep, names in asked if rep == 0] == [("W1", "W2", "W3"), ("W4",)]
    assert [names for rep, names in asked if rep == 2] == [("W1", "W2", "W3")]
    ours = {name: dict.fromkeys(KEYS, 100.0) for name in ("W1", "W2", "W3", "W4", "W4warm")}
    rows = {row.name.partition(" beside")[0]: row for row in figures._beside(context("x"), ours, load.median(runs))}
    assert list(rows) == ["W1", "W2", "W3", "W4 cold", "W4 warm"]
    assert all(row.value == "100 : 200" for row in rows.values())
    assert "0.50 x" in rows["W1"].note and "repetition" not in rows["W1"].note
    assert [name for name, row in rows.items() if "recorded:" in row.note] == ["W1", "W2", "W3"]
    assert "2.00 x" in rows["W4 cold"].note and "the rival's of one repetition" in rows["W4 cold"].note


def test_a_w4_that_fails_takes_nothing_along(
    asked: list[tuple[int, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = load.measure

    async def failing(url: str, model: str, names: Sequence[str], *, rep: int) -> load.Figures:
        return await measure(url, model, names, rep=7)

    monkeypatch.setattr(load, "measure", failing)
    found = figures._rival(context("llama-server"), 0)
    assert set(found) == {"W1", "W2", "W3"}
    rows = list(figures._beside(context("llama-server"), found, found))
    assert [(row.status, row.note) for row in rows[3:]] == [("not run", "the rival failed")] * 2
    alone = list(figures._beside(context(None), found, {}))
    assert {row.status for row in alone} == {"not run"} and "recorded: 175" in alone[0].note


@pytest.mark.parametrize(("events", "status"), [(0.995, "passed"), (0.985, "missed")])
def test_tokens_that_come_together_are_a_miss(events: float, status: str) -> None:
    latencies = dict.fromkeys(("itl_p50_ms", "itl_p99_ms", "ttft_p50_s"), 0.01)
    run = {
        name: dict.fromkeys(KEYS, 2000.0) | latencies | {"events_per_token": events if name == "W2" else 0.5}
        for name in ("W1", "W2", "W3", "W4", "W4warm")
    }
    rows = {row.name: row for row in figures._judged(run, [run])}
    assert rows["events a token on W2"].status == status
    assert rows["W2"].status == "passed" and rows["W4 warm"].status == "missed"
