"""Runs engines in turn, a fresh server for each repetition, and keeps what each of them showed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.compare.engine import Engine, Model
from bench.compare.records import Figures, Record, Session, path_of, read
from octavo.errors import OctavoError

ONCE = ("quality", "rates", "batches")
"""What repeats without a clock, and the curves, drawn from the first repetition alone."""
ARRIVALS = ("W5", "rates")
"""Need an arrival rate."""
REFERENCE_SHARE = 0.7
FAILURES = (OctavoError, RuntimeError, OSError, subprocess.SubprocessError, TimeoutError)


class Probe(Protocol):
    """Starts servers and measures; the tests have one without either."""

    def session(
        self, engine: Engine, model: Model, loads: Sequence[str], *, rep: int, capacity: float | None
    ) -> Session:
        """A fresh server, the loads, the server's end. `capacity` (req/s) sets the arrivals of W5 and of the curves."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """`out`: the folder of one model's records. `tell` gets a line for what happens."""

    out: Path
    model: Model
    engines: Sequence[Engine]
    probe: Probe
    reference: str
    """The engine whose capacity sets the arrival rates of all."""
    tell: Callable[[str], None] = print
    versions: dict[str, str] = field(default_factory=dict)

    def run(self, loads: Sequence[str], reps: int) -> None:
        """Everything that is not there yet. An engine that fails is noted and does not stop the others."""
        able = [e for e in self.engines if self._able(e)]
        capacity = self._capacity(able) if set(ARRIVALS) & set(loads) else None
        if capacity is None:
            loads = [name for name in loads if name not in ARRIVALS]
        for engine, rep in order(able, reps):
            wanted = [name for name in loads if rep == 0 or name not in ONCE]
            self._measure(engine, rep, wanted, capacity)

    def _able(self, engine: Engine) -> bool:
        why = engine.refuses(self.model)
        if why is None:
            try:
                self.versions[engine.name] = engine.version()
                return True
            except FAILURES as error:
                why = f"it does not tell its version: {error}"
        self.tell(f"{engine.name}: not run: {why}")
        return False

    def _capacity(self, able: Sequence[Engine]) -> float | None:
        """Requests a second that the reference answers, 8 at once, measured once; None where it cannot be had."""
        engine = next((e for e in able if e.name == self.reference), None)
        if engine is None:
            self.tell(f"W5 and rates: not run: they need {self.reference}, whose capacity sets the arrivals")
            return None
        found = self._measure(engine, 0, ["W5cap"], None).figures.get("W5cap")
        return found["capacity_req_s"] if found else None

    def _measure(self, engine: Engine, rep: int, loads: Sequence[str], capacity: float | None) -> Record:
        path = path_of(self.out, engine.name, rep)
        record = self._record(engine, rep, read(path), path)
        left = [name for name in loads if name not in record.measured]
        if not left:
            self.tell(f"{engine.name} {rep}: all there")
            return record
        self.tell(f"{engine.name} {rep}: {', '.join(left)} ({self.versions[engine.name]})")
        try:
            session = self.probe.session(engine, self.model, left, rep=rep, capacity=capacity)
        except FAILURES as error:
            record.error = f"{', '.join(left)}: {type(error).__name__}: {error}"[:600]
            self.tell(f"{engine.name} {rep}: failed: {record.error}")
        else:
            record.sessions.append(session)
            record.error = ""
            self.tell(f"{engine.name} {rep}: {brief(session.figures)}{_warning(session)}")
        record.write(path)
        return record

    def _record(self, engine: Engine, rep: int, kept: Record | None, path: Path) -> Record:
        """The record so far. Another version's or command's figures are set aside, not mixed in."""
        fresh = Record(
            engine.name,
            self.model.name,
            rep,
            self.versions[engine.name],
            engine.weights(self.model).name,
            engine.command(self.model, 0),
            engine.environment(),
            engine.caveat,
        )
        if kept is None:
            return fresh
        if (kept.version, kept.command, kept.environment) == (fresh.version, fresh.command, fresh.environment):
            return kept
        path.rename(path.with_suffix(f".{time.strftime('%H%M%S')}.old"))
        self.tell(f"{engine.name} {rep}: measured again: {kept.version} is {fresh.version} now, or its command changed")
        return fresh


def order(engines: Sequence[Engine], reps: int) -> list[tuple[Engine, int]]:
    """Interleaved, and each repetition begins with another engine: none always has the best minute."""
    turns = []
    for rep in range(reps):
        shift = rep % max(1, len(engines))
        turns += [(engine, rep) for engine in [*engines[shift:], *engines[:shift]]]
    return turns


BRIEF = {
    "W1": ("out_tok_s", "tok/s"),
    "W2": ("decode_tok_s", "tok/s"),
    "W3": ("prefill_tok_s", "tok/s"),
    "W4": ("seconds", "s"),
    "W4warm": ("seconds", "s"),
    "W5cap": ("capacity_req_s", "req/s"),
    "W5": ("itl_p99_ms", "ms p99"),
}


def brief(figures: Figures) -> str:
    """One figure a load, for the eye."""
    words = []
    for name, (key, unit) in BRIEF.items():
        if name in figures:
            void = " (void: cached tokens)" if figures[name].get("void") else ""
            words.append(f"{name} {figures[name][key]:.4g} {unit}{void}")
    return ", ".join(words) or "curves"


def _warning(session: Session) -> str:
    return f"; DISTURBED: {session.disturbed}" if session.disturbed else ""
