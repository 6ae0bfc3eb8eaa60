"""Bars on a terminal, and silence elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from octavo.llm.progress import LoadingBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with LoadingBar() as bar:
        for phase, fraction in (("fetching", 0.0), ("fetching", 1.0), ("weights", 0.5), ("weights", 1.0)):
            bar.update(phase, fraction)
    assert "fetching: 100%" in terminal.getvalue() and "weights: 100%" in terminal.getvalue()


def test_silence_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with LoadingBar() as bar:
        bar.update("weights", 0.5)
    assert file.getvalue() == ""
