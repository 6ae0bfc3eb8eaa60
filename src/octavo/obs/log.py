"""Logging: one format, to standard error, so that standard output stays the program's answer."""

from __future__ import annotations

import logging
import sys
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

FORMAT = "%(levelname).1s %(asctime)s %(name)s: %(message)s"
TIME_FORMAT = "%m-%d %H:%M:%S"


def get_logger(name: str) -> logging.Logger:
    """The logger of a part: `get_logger("engine")` is `octavo.engine`. A full module name stays as it is."""
    return logging.getLogger(name if name.startswith("octavo") else f"octavo.{name}")


def configure(level: Level = "info", *, part: str = "") -> None:
    """Send Octavo's log lines to standard error. Called by programs, never by the library; calling twice is harmless.

    `part` marks the lines of another process (the engine's).
    """
    root = logging.getLogger("octavo")
    mark = f"[{part}] " if part else ""
    for handler in list(root.handlers):
        if handler.name == "octavo":
            root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT.replace("%(message)s", mark + "%(message)s"), TIME_FORMAT))
    handler.name = "octavo"
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
