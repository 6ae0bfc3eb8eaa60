"""Records -> one line an engine: medians and spreads over repetitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.compare.records import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repetitions."""

    median: float
    least: float
    most: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 3) -> str:
        """`median (least–most)`; one repetition has no spread."""
        middle = number(self.median, digits)
        return middle if self.count == 1 else f"{middle} ({number(self.least, digits)}–{number(self.most, digits)})"


@dataclass(slots=True)
class Line:
    """An engine on one model. `figures`: load -> figure -> spread, void ones left out."""

    engine: str
    model: str
    version: str
    weights: str
    caveat: str
    figures: dict[str, dict[str, Spread]]
    facts: dict[str, Spread]
    """start_seconds, pss_mib; bandwidth in GB/s; for Octavo decode_s and prefill_s, its Program's least times."""
    notes: list[str] = field(default_factory=list)
    """What speaks against its figures: void, disturbed and failed runs."""

    def get(self, load: str, figure: str) -> Spread | None:
        return self.figures.get(load, {}).get(figure)


def lines(records: Sequence[Record]) -> list[Line]:
    """One line an engine, in order of first appearance."""
    names = dict.fromkeys(r.engine for r in records)
    return [_line([r for r in records if r.engine == name]) for name in names]


def _line(runs: Sequence[Record]) -> Line:
    loads = dict.fromkeys(load for r in runs for load in r.figures)
    figures: dict[str, dict[str, Spread]] = {}
    for load in loads:
        have = [r.figures[load] for r in runs if load in r.figures]
        keys = set.intersection(*(set(f) for f in have))
        figures[load] = {key: Spread.of([f[key] for f in have]) for key in sorted(keys)}
    samples: dict[str, list[float]] = {}
    for session in (s for r in runs for s in r.sessions):
        readings = [b for b in (session.before, session.after) if b]
        told = {"start_seconds": session.start_seconds, "pss_mib": session.pss_mib, **session.limits}
        for key, value in told.items():
            samples.setdefault(key, []).append(value)
        samples.setdefault("bandwidth", []).extend(readings)
    last = runs[-1]
    facts = {key: Spread.of(values) for key, values in samples.items() if values}
    return Line(last.engine, last.model, last.version, last.weights, last.caveat, figures, facts, _notes(runs))


def _notes(runs: Sequence[Record]) -> list[str]:
    notes = []
    for run in runs:
        if run.void:
            notes.append(f"repetition {run.rep}: {', '.join(run.void)} void: answered from the prefix cache")
        for session in run.sessions:
            if session.disturbed:
                notes.append(f"repetition {run.rep}: {', '.join(session.figures)} disturbed: {session.disturbed}")
            if short := [k for k, f in session.figures.items() if f.get("short_answers")]:
                notes.append(f"repetition {run.rep}: answers shorter than asked in {', '.join(short)}")
        if run.error:
            notes.append(f"repetition {run.rep} failed: {run.error}")
    if len(versions := {r.version for r in runs}) > 1:
        notes.append(f"repetitions of several versions: {', '.join(sorted(versions))}")
    return notes


def number(value: float, digits: int = 3) -> str:
    """Significant digits, never an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, places):,.{places}f}"
