"""Writing a safetensors file tensor by tensor: sizes are known before, bytes are made when their turn comes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALIGN = 64
"""Where the data begins: a multiple of it in the file, so tensors whose sizes are multiples lie on cache lines."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write."""

    name: str
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    nbytes: int
    make: Callable[[], Any] = field(repr=False, compare=False)
    """Its bytes, row-major: a buffer of `nbytes`."""


def write_safetensors(path: Path, entries: Sequence[Entry], *, metadata: Mapping[str, str]) -> None:
    """Writes `entries` in order. Raises OSError; what it leaves then is no safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for entry in entries:
        end = at + entry.nbytes
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            data = memoryview(entry.make()).cast("B")
            assert data.nbytes == entry.nbytes, (entry.name, data.nbytes, entry.nbytes)
            file.write(data)
