"""Errors of the command line and the exit codes they become."""

from __future__ import annotations

from octavo.errors import ConfigError

OK = 0
FAILED = 1
USAGE = 2
SOME_FAILED = 3
"""`octavo run` finished, and some lines of its input gave errors."""
INTERRUPTED = 130


class UsageError(ConfigError):
    """What was typed cannot be meant; the message says what, got, allowed. Exit code 2."""
