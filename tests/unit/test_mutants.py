"""scripts/mutants.py: every mutant still applies, and only a failed test kills. That each is killed is CI's stage."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_PATH = Path(__file__).resolve().parents[2] / "scripts" / "mutants.py"
_SPEC = importlib.util.spec_from_file_location("octavo_mutants", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
mutants: Any = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = mutants
_SPEC.loader.exec_module(mutants)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_and_is_python(mutant: Any) -> None:
    source = (mutants.ROOT / mutant.file).read_text()
    changed = mutants.mutated(source, mutant)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_a_mutant_whose_text_is_gone_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        mutants.mutated("a = 1\n", mutants.Mutant("gone", "file.py", "b = 1", "b = 2"))
    with pytest.raises(ValueError, match="2 times"):
        mutants.mutated("a = 1\na = 1\n", mutants.Mutant("twice", "file.py", "a = 1", "a = 2"))


@pytest.mark.parametrize(
    ("ended", "verdict", "code"),
    [(0, "SURVIVED", 1), (1, "killed", 0), (2, "BROKEN", 1), ("limit", "HUNG", 1)],
)
def test_only_a_failed_test_kills(
    ended: int | str, verdict: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit follows the unmutated run's time, and a run that reaches it is no kill."""
    clock = iter([0.0, 2.0, 0.0, 1.0])
    limits: list[float | None] = []

    def run(command: list[str], *, timeout: float | None, **others: Any) -> subprocess.CompletedProcess[str]:
        limits.append(timeout)
        if len(limits) > 1 and ended == "limit":
            raise subprocess.TimeoutExpired(command, timeout or 0)
        return subprocess.CompletedProcess(command, 0 if len(limits) == 1 else int(ended), "FAILED x", "")

    monkeypatch.setattr(mutants, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr(mutants, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    name = mutants.MUTANTS[0].name
    monkeypatch.setattr(mutants, "MUTANTS", mutants.MUTANTS[:1])
    assert mutants.main([name]) == code
    assert limits == [mutants.UNMUTATED, 2.0 * mutants.FACTOR + mutants.SLACK]
    assert capsys.readouterr().out.splitlines()[1].split()[0] == verdict


def test_tests_that_hang_without_a_mutant_end_at_a_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], *, timeout: float, **others: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(mutants, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired))
    assert mutants.main([]) == 1
    said = capsys.readouterr().out
    assert said == "the tests are still running after 600 s without a mutant, which is the limit\n"


def test_a_word_that_no_name_holds_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["no such mutant"]) == 2
    assert "allowed: publish skipped at finish" in capsys.readouterr().out
