"""Typed reads of a GGUF file's metadata."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from octavo.errors import FileFormatError
from octavo.weights.gguf_parts import GGUFModel


class Metadata:
    """Metadata keys by type; the architecture's prefix is filled in for keys that start with a dot."""

    def __init__(self, file: GGUFModel, arch: str) -> None:
        self.file, self.arch = file, arch
        self.asked: set[str] = set()
        """Full names of the keys that were read."""

    def value(self, key: str) -> Any:
        """The value, of whatever kind; None where there is none."""
        full = self._full(key)
        self.asked.add(full)
        return self.file.metadata.get(full)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """The value, of exactly this kind (an int passes for a float). Raises FileFormatError for another kind or a
        float that is not finite."""
        full, value = self._full(key), self.value(key)
        if value is None:
            return default
        kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if isinstance(value, bool) != (kind is bool) or type(value) not in kinds:
            self.fail(full, type(value).__name__, kind.__name__)
        if kind is float and not math.isfinite(value):
            self.fail(full, value, "a finite number")
        return kind(value) if kind in (int, float) else value

    def fail(self, key: str, got: object, allowed: str) -> NoReturn:
        raise FileFormatError(f"{self.file.path}: {self._full(key)}: got {got}, allowed: {allowed}")

    def size(self, key: str, default: int | None = None) -> int:
        """A count that must be there (or has a default) and lies in 1 … 2^31."""
        value = self.get(key, int, default)
        if value is None or not 0 < value < 2**31:
            self.fail(key, value, "a whole number from 1 to 2147483647")
        return int(value)

    def _full(self, key: str) -> str:
        return self.arch + key if key.startswith(".") else key
