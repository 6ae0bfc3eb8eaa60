"""Rows of .ci/run's stages: its summary is read as it is printed, and nothing of it is taken for more than it says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from bench import platforms
from bench.rows import Context, Row

ROOT = Path(__file__).parents[3]


def rows(root: Path) -> dict[str, Row]:
    context = Context(root, "python", "m", True, None, lambda: "m")
    found = list(platforms.platforms(context))
    return dict(zip(platforms.STAGES, found, strict=True))


def fake(root: Path, bodies: dict[str, str], *, end: str = "") -> Path:
    """The real .ci/run with other stages."""
    text = (ROOT / ".ci" / "run").read_text()
    head, _, tail = text.partition("\nalways=(copy)\n")
    stubs = dict.fromkeys(("copy", "environment", "install", *platforms.STAGES), "true") | bodies
    functions = "\n".join(f"{name}() {{ {body}; }}" for name, body in stubs.items())
    path = root / ".ci" / "run"
    path.parent.mkdir()
    path.write_text(f"{head}\n{functions}\n{end}\nalways=(copy)\n{tail}")
    path.chmod(0o755)
    return root


def test_a_stage_is_passed_missed_or_not_run_for_its_own_reason(tmp_path: Path) -> None:
    found = rows(fake(tmp_path, {"clang": "skip no clang++", "aarch64": "return 3", "docs": "echo docs 9 ok"}))
    assert {name: row.status for name, row in found.items()} == {
        "sanitizers": "passed",
        "clang": "not run",
        "emulated": "passed",
        "haswell": "passed",
        "aarch64": "missed",
        "lint": "passed",
        "stub": "passed",
        "docs": "passed",
    }
    assert found["clang"].note == "no clang++"
    assert found["aarch64"].note == "FAILED (code 3)"
    assert "R03" in found["haswell"].name


def test_a_run_that_ends_early_shows_nothing(tmp_path: Path) -> None:
    """A line that looks like a verdict counts in the table at the end only."""
    found = rows(fake(tmp_path, {}, end="echo 'clang  9  ok'; exit 5"))
    assert {row.status for row in found.values()} == {"not run"}
    assert found["clang"].note == ".ci/run ended with code 5 without a word of it"
    assert {row.status for row in rows(tmp_path / "nothing").values()} == {"not run"}


@pytest.mark.parametrize("stubborn", [False, True])
def test_at_the_time_limit_all_it_started_ends_and_its_folder_goes(
    stubborn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what does not heed SIGTERM."""
    monkeypatch.setattr(platforms, "TIMEOUT", 2.0)
    monkeypatch.setattr(platforms, "GRACE", 2.0)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    trap = "trap '' TERM; " if stubborn else ""
    body = f"{trap}bash -c 'echo $$ > {tmp_path}/child; sleep 60; true'"
    began = time.monotonic()
    found = rows(fake(tmp_path, {"clang": body}))
    assert time.monotonic() - began < 30, "nothing waits for the child's own end"
    assert {row.note for row in found.values()} == {".ci/run was ended after 2 s without a word of it"}
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 10
    while alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(child)
    assert stubborn or not list((tmp_path / "tmp").iterdir())


def alive(pid: int) -> bool:
    """Neither gone nor waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_what_failed_before_is_named(tmp_path: Path) -> None:
    found = rows(fake(tmp_path, {"environment": "return 1", "lint": "return 2"}))
    assert found["lint"].note == "FAILED (code 2); environment failed before"


@pytest.mark.parametrize("name", platforms.STAGES)
def test_stages_are_those_of_the_script(name: str) -> None:
    assert re.search(rf"^{name}\(\) {{$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
