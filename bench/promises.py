"""Rows that tests prove: each promise names its tests; one pytest run answers them all."""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Context, Row, holds, not_run


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
    """Run every named test once and give each promise its verdict: passed only if something ran and nothing failed."""
    found = promises(c.root / "bench" / "promises.toml")
    files = sorted({t.partition("::")[0] for p in found for t in p.tests})
    there = [f for f in files if (c.root / f).exists()]
    outcomes = _run(c, there)
    for p in found:
        total = Outcome()
        for test in p.tests:
            for name, outcome in outcomes.items():
                if _matches(name, test):
                    total.passed += outcome.passed
                    total.failed += outcome.failed
                    total.skipped += outcome.skipped
        title = f"{p.row}: {p.title}"
        if total.passed + total.failed == 0:
            why = f"{total.skipped} skipped" if total.skipped else "no such test: " + ", ".join(p.tests)
            yield not_run(p.section, title, "tests pass", why)
        else:
            value = f"{total.passed} of {total.passed + total.failed}"
            note = f"{total.skipped} skipped" if total.skipped else ""
            yield holds(p.section, title, total.failed == 0, target="tests pass", value=value, note=note)


def _matches(name: str, test: str) -> bool:
    """`name` is path::test[params]; `test` a folder, a file, or path::prefix."""
    if "::" in test:
        return name.startswith(test)
    path = name.partition("::")[0]
    return path == test or path.startswith(test.rstrip("/") + "/")


def _run(c: Context, files: list[str]) -> dict[str, Outcome]:
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1", *files]
        env = os.environ | {"OCTAVO_TEST_MODELS": str(Path(c.model_file()).parent)}
        subprocess.run([c.python, "-m", "pytest", *words], cwd=c.root, env=env, timeout=3600)
        return parse(report)


def parse(report: Path) -> dict[str, Outcome]:
    """JUnit XML -> outcome by path::test."""
    found: dict[str, Outcome] = {}
    if not report.exists():
        return found
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.get("file") or case.get("classname", "").replace(".", "/") + ".py"
        outcome = found.setdefault(f"{path}::{case.get('name')}", Outcome())
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failed += 1
        elif "skipped" in kinds:
            outcome.skipped += 1
        else:
            outcome.passed += 1
    return found
