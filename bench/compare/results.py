"""Everything in a folder of records, and the check of scripts/accept that reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.compare.records import records
from bench.compare.summary import Line, lines
from bench.compare.targets import BY_SIZE, Targets, target_rows
from bench.rows import Context, Row, not_run

SECTION = "Beside rivals"


@dataclass(frozen=True, slots=True)
class Result:
    """One model."""

    name: str
    lines: list[Line]
    targets: Targets


def results(folder: Path) -> list[Result]:
    """Models in the order of their names; [] where nothing was measured. Raises ValueError where a file is broken."""
    found = []
    for about in sorted(folder.glob("*/about.json")):
        told = json.loads(about.read_text())
        if runs := records(about.parent):
            found.append(Result(about.parent.name, lines(runs), BY_SIZE[told["size"]]))
    return found


def compared(c: Context) -> Iterator[Row]:
    """The targets of issue 4, from the latest records of `python -m bench.compare run`."""
    found = results(c.root / "compare-results")
    if not found:
        yield not_run(SECTION, "ratios to the best rival", "see docs/performance.md", "no records in compare-results")
    for one in found:
        yield from target_rows(one.lines, one.targets, f"{SECTION}: {one.name}")
