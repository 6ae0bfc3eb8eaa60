"""The examples run: here on the fake executor, which answers nonsense."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo import LLM, EngineArgs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["offline_batch", "stream", "chat", "async_client"])
def test_example(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fake_llm(model: str) -> LLM:
        return LLM(model, executor="fake")

    def fake_args(**fields: Any) -> EngineArgs:
        return EngineArgs(executor="fake", **fields)

    monkeypatch.setattr(octavo, "LLM", fake_llm)
    monkeypatch.setattr(octavo, "EngineArgs", fake_args)
    done = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]("fake")
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    assert len(capsys.readouterr().out) > 20
