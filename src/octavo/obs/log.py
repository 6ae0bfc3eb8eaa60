"""Logging: one format, to standard error, so that standard output stays the program's answer."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

FORMAT = "%(levelname).1s %(asctime)s %(name)s: %(message)s"
TIME_FORMAT = "%m-%d %H:%M:%S"


def get_logger(name: str) -> logging.Logger:
    """The logger of a part: `get_logger("engine")` is `octavo.engine`. A full module name stays as it is."""
    return logging.getLogger(name if name.startswith("octavo") else f"octavo.{name}")


class Seldom:
    """A line for what may happen with every request: the first at once, then at most one in `every` seconds, with how
    many were left out since the last. Not thread-safe."""

    def __init__(
        self, log: logging.Logger, level: int, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._level, self._every, self._clock = log, level, every, clock
        self._next = -math.inf
        self._left_out = 0

    def __call__(self, message: str, *args: object) -> None:
        """As `logging.Logger.log`."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more like it since the last such line)" if self._left_out else ""
        self._next, self._left_out = now + self._every, 0
        self._log.log(self._level, f"{message}%s", *args, more)


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
