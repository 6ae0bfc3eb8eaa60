"""A row of the acceptance table: what was promised, what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["passed", "missed", "not run"]


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    name: str
    target: str
    value: str
    status: Status
    note: str = ""


def at_most(section: str, name: str, value: float, limit: float, unit: str, *, note: str = "") -> Row:
    return Row(section, name, f"<= {limit:g} {unit}", f"{value:.4g} {unit}", _status(value <= limit), note)


def below(section: str, name: str, value: float, limit: float, unit: str, *, note: str = "") -> Row:
    return Row(section, name, f"< {limit:g} {unit}", f"{value:.4g} {unit}", _status(value < limit), note)


def at_least(section: str, name: str, value: float, limit: float, unit: str, *, note: str = "") -> Row:
    return Row(section, name, f">= {limit:g} {unit}", f"{value:.4g} {unit}", _status(value >= limit), note)


def holds(section: str, name: str, ok: bool, *, target: str, value: str, note: str = "") -> Row:
    return Row(section, name, target, value, _status(ok), note)


def shown(section: str, name: str, value: str, *, note: str = "") -> Row:
    """A figure without a target: it is reported, and passes by being there."""
    return Row(section, name, "reported", value, "passed", note)


def not_run(section: str, name: str, target: str, why: str) -> Row:
    return Row(section, name, target, "-", "not run", why)


def _status(ok: bool) -> Status:
    return "passed" if ok else "missed"


@dataclass(frozen=True, slots=True)
class Context:
    """What a check may use."""

    root: Path
    python: str
    """The interpreter whose environment has octavo installed."""
    model: str
    quick: bool
    rival: str | None
    model_file: Callable[[], str]
    """The resolved path of `model`; fetches it on first use."""

    @property
    def reps(self) -> int:
        return 1 if self.quick else 3

    def octavo(self, *words: str) -> list[str]:
        return [self.python, "-m", "octavo", *words]


Check = Callable[[Context], Iterator[Row]]


class Table:
    """Prints rows as they come and keeps them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row) -> None:
        if not self.rows or self.rows[-1].section != row.section:
            print(f"\n{row.section}", flush=True)
        note = f"   ({row.note})" if row.note else ""
        print(f"  {row.status:<8} {row.name:<58} {row.value:>16}   {row.target}{note}", flush=True)
        self.rows.append(row)

    def summary(self) -> str:
        count = {s: sum(r.status == s for r in self.rows) for s in ("passed", "missed", "not run")}
        return ", ".join(f"{n} {s}" for s, n in count.items())

    def write(self, path: Path, about: dict[str, Any]) -> None:
        path.write_text(json.dumps({"about": about, "rows": [asdict(r) for r in self.rows]}, indent=1) + "\n")
