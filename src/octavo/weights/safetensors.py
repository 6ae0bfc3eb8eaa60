"""A safetensors file, opened by mmap, its header checked against the file before use.

    u64 header length | JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…}} | data

The checks are the format's own rules: offsets in the file, without holes or overlaps, and equal to what dtype and shape
need. Reading is a slice of the mapping, so no library stands between.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from octavo.errors import FileFormatError, ModelError

MAX_HEADER = 100_000_000
MAX_RANK = 8
DTYPES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
"""Dtype -> bytes an element."""


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One entry of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    """The tensor's bytes, row-major, read-only, in the mapping."""


class SafetensorsFile:
    """An open safetensors file: `tensors` by name, `header` the raw JSON bytes. Raises FileFormatError, ModelError."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < 10:
                    self._fail("size", size, "at least 10 bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be opened: {error.strerror}") from None
        buffer = memoryview(self._map)
        self.size = size
        length = struct.unpack_from("<Q", buffer)[0]
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            self._fail("length of the header", length, f"2 to {min(MAX_HEADER, size - 8)}")
        self.header = bytes(buffer[8 : 8 + length])
        self.tensors: Mapping[str, SafeTensor] = self._directory(buffer[8 + length :])

    def _fail(self, what: str, got: object, allowed: str) -> NoReturn:
        raise FileFormatError(f"{self.path}: {what}: got {got}, allowed: {allowed}")

    def _directory(self, data: memoryview) -> dict[str, SafeTensor]:
        try:
            header = json.loads(self.header, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            self._fail("header", f"invalid JSON ({str(error)[:100]})", "JSON with each key once")
        if not isinstance(header, dict):
            self._fail("header", type(header).__name__, "an object")
        header.pop("__metadata__", None)
        entries = [(self._offsets(name, entry), name, entry) for name, entry in header.items()]
        tensors: dict[str, SafeTensor] = {}
        at = 0
        for (begin, end), name, entry in sorted(entries, key=lambda item: item[0]):
            if begin != at or end > len(data):
                self._fail(
                    f"data_offsets of {name}", [begin, end], f"a start of {at} (no holes) and an end up to {len(data)}"
                )
            tensors[name] = SafeTensor(name, entry["dtype"], tuple(entry["shape"]), data[begin:end])
            at = end
        if at != len(data):
            self._fail("data", f"{len(data)} bytes", f"the {at} bytes of the tensors")
        return {name: tensors[name] for name in header}

    def _offsets(self, name: str, entry: Any) -> tuple[int, int]:
        """Checks one entry by itself."""
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._fail(f"entry {name[:100]}", str(entry)[:100], "dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            self._fail(f"dtype of {name}", repr(dtype)[:40], ", ".join(DTYPES))
        if not _naturals(shape) or len(shape) > MAX_RANK:
            self._fail(f"shape of {name}", str(shape)[:100], f"up to {MAX_RANK} sizes from 0")
        if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(f"data_offsets of {name}", str(offsets)[:100], "begin and end, from 0")
        want = math.prod(shape) * DTYPES[dtype]
        if offsets[1] - offsets[0] != want:
            self._fail(f"data_offsets of {name}", offsets, f"{want} bytes, as {dtype} of shape {shape} needs")
        return offsets[0], offsets[1]


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key twice")
    return result
