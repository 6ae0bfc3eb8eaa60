"""Where Octavo keeps things of its own for a user: the XDG standard, which says to ignore relative paths."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder that octavo keeps in the user's cache: <XDG_CACHE_HOME or ~/.cache>/octavo."""
    return cache_base() / "octavo"


def cache_base() -> Path:
    """XDG_CACHE_HOME or ~/.cache, where other programs have their folders too."""
    return _base(os.environ.get("XDG_CACHE_HOME"), ".cache")


def user_config() -> Path:
    """The folder of the user's settings: <XDG_CONFIG_HOME or ~/.config>/octavo."""
    return _base(os.environ.get("XDG_CONFIG_HOME"), ".config") / "octavo"


def _base(value: str | None, default: str) -> Path:
    return Path(value) if value and os.path.isabs(value) else Path.home() / default
