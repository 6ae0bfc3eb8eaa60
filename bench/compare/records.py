"""What a run leaves: one JSON file for each engine and repetition, so that a comparison can go on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, dict[str, float]]

SAME = 0.1
"""Bandwidth before and after may differ by this much: else the machine changed under the figures."""
QUIET = 0.05
"""Other processes may take this share of all CPU time."""


@dataclass(slots=True)
class Session:
    """One life of a server. Bandwidth is of all threads in GB/s, None where it could not be read."""

    start_seconds: float
    pss_mib: float
    foreign: float
    """Share of all CPU time that neither server nor client used."""
    before: float | None
    after: float | None
    date: str
    figures: Figures
    limits: dict[str, float] = field(default_factory=dict)
    """Octavo only: least seconds of a decode step and of the prefill of W3, by its own Program (`octavo explain`)."""

    @property
    def disturbed(self) -> str:
        """Why its figures are worth little, "" where nothing speaks against them."""
        if self.before and self.after and abs(self.before - self.after) > SAME * max(self.before, self.after):
            return f"bandwidth {self.before:.1f}, then {self.after:.1f} GB/s"
        return f"others took {self.foreign:.0%} of the CPU" if self.foreign > QUIET else ""


@dataclass(slots=True)
class Record:
    """All that is known of one engine's repetition of one model."""

    engine: str
    model: str
    rep: int
    version: str
    weights: str
    command: list[str]
    environment: dict[str, str]
    caveat: str
    sessions: list[Session] = field(default_factory=list)
    error: str = ""
    """How the last try ended, "" for well."""

    @property
    def figures(self) -> Figures:
        """Of all sessions; a void figure of W1 to W3 is not among them."""
        return {k: v for s in self.sessions for k, v in s.figures.items() if not v.get("void")}

    @property
    def void(self) -> list[str]:
        return [k for s in self.sessions for k, v in s.figures.items() if v.get("void")]

    @property
    def measured(self) -> set[str]:
        """Names of loads; the points of a curve are called LOAD:POINT."""
        return {k.partition(":")[0] for s in self.sessions for k in s.figures}

    def write(self, path: Path) -> None:
        """At once or not at all: a run that is killed leaves the file as it was."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(fresh, path)


def read(path: Path) -> Record | None:
    """None where there is no such file. Raises ValueError with the path where it is no record."""
    try:
        body: dict[str, Any] = json.loads(path.read_text())
        body["sessions"] = [Session(**s) for s in body["sessions"]]
        return Record(**body)
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: no record of a run ({error}); remove it to measure again") from None


def path_of(folder: Path, engine: str, rep: int) -> Path:
    return folder / f"{engine}-{rep}.json"


def records(folder: Path) -> list[Record]:
    """All runs of one model's folder, engines in the order of their names. Raises ValueError as `read`."""
    found: Iterable[Record | None] = (read(p) for p in sorted(folder.glob("*-[0-9]*.json")))
    return [r for r in found if r is not None]
