"""Where Octavo keeps things of its own for a user: the XDG standard, which says to ignore relative paths."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder that octavo keeps in the user's cache: <XDG_CACHE_HOME or ~/.cache>/octavo."""
    return cache_base() / "octavo"


def cache_base() -> Path:
    """XDG_CACHE_HOME or ~/.cache, where other programs have their folders too."""
    return _base("XDG_CACHE_HOME", ".cache")


def user_config() -> Path:
    """The folder of the user's settings: <XDG_CONFIG_HOME or ~/.config>/octavo."""
    return _base("XDG_CONFIG_HOME", ".config") / "octavo"


def _base(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "")
    return Path(base) if os.path.isabs(base) else Path.home() / default
