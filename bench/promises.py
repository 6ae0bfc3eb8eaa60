"""Rows that tests prove: each promise names its tests; one pytest run answers them all."""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Context, Row, holds, not_run

MODELS = "OCTAVO_TEST_MODELS"
"""Environment variable: the folder in which tests look for real models."""
TIMEOUT = 7200
"""Seconds for all named tests, those on real models included."""


@dataclass(frozen=True, slots=True)
class Promise:
    section: str
    row: str
    title: str
    tests: tuple[str, ...]
    """Files, folders, or file::test (a prefix matches)."""


@dataclass(slots=True)
class Outcome:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def ran(self) -> int:
        return self.passed + self.failed

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def promises(path: Path) -> list[Promise]:
    """Read bench/promises.toml."""
    with path.open("rb") as file:
        table = tomllib.load(file)
    return [
        Promise(section, row, str(entry["title"]), tuple(entry["tests"]))
        for section, rows in table.items()
        for row, entry in rows.items()
    ]


def tested(c: Context) -> Iterator[Row]:
    """Run every named test once and give each promise its verdict."""
    found = promises(c.root / "bench" / "promises.toml")
    files = sorted({t.partition("::")[0] for p in found for t in p.tests})
    there = [f for f in files if (c.root / f).exists()]
    outcomes = _run(c, there)
    for p in found:
        yield verdict(p, outcomes)


def verdict(p: Promise, outcomes: Mapping[str, Outcome]) -> Row:
    """Passed only if something of all that the promise names ran, and nothing failed.

    A folder or a file may skip some of its tests, and the note says how many. One of which nothing ran, like a test
    that was skipped or is missing, leaves what the promise says unshown.
    """
    total = Outcome()
    idle: list[str] = []
    for test in p.tests:
        one = Outcome()
        for name, outcome in outcomes.items():
            if _matches(name, test):
                one.add(outcome)
        total.add(one)
        if not one.ran:
            idle.append(f"skipped: {test}" if one.skipped else f"no such test: {test}")
    title = f"{p.row}: {p.title}"
    counts = f"{total.passed} passed, {total.skipped} skipped"
    if total.failed:
        value = f"{total.passed} of {total.ran}"
        return holds(p.section, title, False, target="tests pass", value=value, note=f"{total.failed} failed, {counts}")
    if idle:
        return not_run(p.section, title, "tests pass", f"{counts}; {', '.join(idle)}")
    return holds(p.section, title, True, target="tests pass", value=f"{total.passed} of {total.ran}", note=counts)


def _matches(name: str, test: str) -> bool:
    """`name` is path::test[params]; `test` a folder, a file, or path::prefix."""
    if "::" in test:
        return name.startswith(test)
    path = name.partition("::")[0]
    return path == test or path.startswith(test.rstrip("/") + "/")


def models_folder(c: Context) -> str:
    """The folder of real models: the user's, whose models tests then use; else that of the model measured."""
    fetched = c.model_file()  # into the cache, where tests look for it too
    return os.environ.get(MODELS) or str(Path(fetched).parent)


def _run(c: Context, files: list[str]) -> dict[str, Outcome]:
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1", *files]
        env = os.environ | {MODELS: models_folder(c)}
        subprocess.run([c.python, "-m", "pytest", *words], cwd=c.root, env=env, timeout=TIMEOUT)
        return parse(report)


def parse(report: Path) -> dict[str, Outcome]:
    """JUnit XML -> outcome by path::test."""
    found: dict[str, Outcome] = {}
    if not report.exists():
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        # A module that is skipped as a whole is a case whose name is the module's.
        module, name = case.get("classname", ""), case.get("name", "")
        path = case.get("file") or (module or name).replace(".", "/") + ".py"
        outcome = found.setdefault(f"{path}::{name}", Outcome())
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failed += 1
        elif "skipped" in kinds:
            outcome.skipped += 1
        else:
            outcome.passed += 1
    return found
