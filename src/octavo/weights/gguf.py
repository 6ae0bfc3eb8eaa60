"""A GGUF file, opened by mmap: metadata and tensor directory, every number checked against the file before it is used.

Nothing here needs NumPy, so that a front end which only wants the vocabulary starts quickly. Layout (versions 2 and 3,
little-endian):

    magic "GGUF" | u32 version | u64 num_tensors | u64 num_kv
    num_kv      x  key string | u32 type | value            (string = u64 length + UTF-8; array = u32 type + u64 count)
    num_tensors x  name string | u32 num_dims | u64 dims… (innermost first) | u32 type | u64 offset
    padding to the alignment | tensor data, each tensor's offset a multiple of the alignment
"""

from __future__ import annotations

import math
import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, overload

from octavo._native import walk_strings  # no NumPy with it; 300,000 strings take Python a tenth of a second
from octavo.errors import FileFormatError, ModelError

MAX_KV = 65_536
MAX_TENSORS = 1_000_000
MAX_NAME = 1_024
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type -> struct code."""

# fmt: off
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# fmt: on
"""Type id -> (name, elements a block, bytes a block)."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor directory. `shape` is outermost first (rows, columns), as NumPy has it."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    """From the start of the file."""
    data: memoryview
    """The tensor's own bytes, read-only, in the mapping."""


class GGUFArray(Sequence[object]):
    """An array of the metadata, still in the file: an element becomes an object when it is asked for."""

    __slots__ = ("_buffer", "_code", "_len", "_offsets", "_start", "raw")

    def __init__(self, buffer: memoryview, *, start: int, end: int, count: int, code: str, offsets: array[int]) -> None:
        self._buffer, self._start, self._code, self._offsets = buffer, start, code, offsets
        self._len = count
        self.raw = buffer[start:end]
        """The bytes of all elements, as in the file: cheap to hash."""

    @property
    def code(self) -> str:
        """struct code of an element; "" for strings."""
        return self._code

    def __len__(self) -> int:
        return self._len

    def _string(self, index: int) -> str:
        at = self._offsets[index]
        return _text(self._buffer[at + 8 : self._offsets[index + 1]], "a metadata string")

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> list[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._len))]
        if not -self._len <= index < self._len:
            raise IndexError(index)
        index %= self._len
        if not self._code:
            return self._string(index)
        return struct.unpack_from("<" + self._code, self._buffer, self._start + index * struct.calcsize(self._code))[0]

    def __iter__(self) -> Iterator[object]:
        return iter(self.tolist())

    def tolist(self) -> list[object]:
        """All elements as a new list."""
        if self._code:
            return list(struct.unpack(f"<{self._len}{self._code}", self.raw))
        # One copy out of the mapping, then slices of bytes: twice as fast as a memoryview a string.
        data, start = bytes(self.raw), self._start
        ends = [offset - start for offset in self._offsets]
        try:
            return [data[a + 8 : b].decode() for a, b in pairwise(ends)]
        except UnicodeDecodeError:
            return [self._string(i) for i in range(self._len)]  # says which error


def _text(data: memoryview, what: str) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{what}: got bytes that are not UTF-8 ({error.reason}), allowed: UTF-8") from None


class _Cursor:
    """A position in the file that cannot leave it."""

    def __init__(self, buffer: memoryview, path: Path) -> None:
        self.buffer, self.path, self.at = buffer, path, 0

    def fail(self, what: str, got: object, allowed: str) -> NoReturn:
        raise FileFormatError(f"{self.path}: {what}: got {got}, allowed: {allowed}")

    @property
    def left(self) -> int:
        return len(self.buffer) - self.at

    def skip(self, size: int, what: str) -> int:
        if size > self.left:
            self.fail(what, f"{size} bytes at offset {self.at} of {len(self.buffer)}", f"at most {self.left}")
        start = self.at
        self.at += size
        return start

    def number(self, code: str, what: str) -> int:
        start = self.skip(struct.calcsize("<" + code), what)
        value: int = struct.unpack_from("<" + code, self.buffer, start)[0]
        return value

    def string(self, what: str, *, limit: int | None = None) -> str:
        size = self.number("Q", f"length of {what}")
        if limit is not None and not 0 < size <= limit:
            self.fail(f"length of {what}", size, f"1 to {limit}")
        start = self.skip(size, what)
        return _text(self.buffer[start : start + size], f"{self.path}: {what}")

    def count(self, what: str, *, item: int, limit: int | None = None) -> int:
        """A u64 count of things that take at least `item` bytes each in the rest of the file."""
        value = self.number("Q", what)
        allowed = self.left // item if limit is None else min(limit, self.left // item)
        if value > allowed:
            self.fail(what, value, f"at most {allowed} ({self.left} bytes are left)")
        return value

    def value(self, key: str) -> object:
        kind = self.number("I", f"type of {key}")
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY:
            return self.array(key)
        code = SCALARS.get(kind)
        if code is None:
            self.fail(f"type of {key}", kind, "0 to 12")
        return self.number(code, key)

    def array(self, key: str) -> GGUFArray:
        kind = self.number("I", f"element type of {key}")
        if kind == STRING:
            count = self.count(f"length of {key}", item=8)
            return self._strings(key, count)
        code = SCALARS.get(kind)
        if code is None:
            self.fail(f"element type of {key}", kind, "0 to 8 or 10 to 12 (no arrays of arrays)")
        size = struct.calcsize("<" + code)
        count = self.count(f"length of {key}", item=size)
        start = self.skip(count * size, key)
        return GGUFArray(self.buffer, start=start, end=self.at, count=count, code=code, offsets=array("Q"))

    def _strings(self, key: str, count: int) -> GGUFArray:
        """Walks the lengths once and keeps where each string starts: 8 bytes an entry, no objects."""
        start, end = self.at, len(self.buffer)
        data: Any = self.buffer  # the native module takes any buffer, its stub knows arrays only
        offsets: Any = array("Q", bytes(8 * (count + 1)))
        found = walk_strings(data, start, offsets)
        if found < count:
            at = offsets[found]
            if end - at < 8:
                self.fail(f"{key}[{found}]", f"a length at offset {at}", f"within the file's {end} bytes")
            size = struct.unpack_from("<Q", self.buffer, at)[0]
            self.fail(f"length of {key}[{found}]", size, f"at most {end - at - 8}")
        self.at = offsets[count]
        return GGUFArray(self.buffer, start=start, end=self.at, count=count, code="", offsets=offsets)


class GGUFFile:
    """An open GGUF file.

    `metadata`: key -> int, float, bool, str or GGUFArray. `tensors`: name -> GGUFTensor, in file order. Raises
    FileFormatError where the file contradicts itself and ModelError where it is a kind of file we do not read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < 24:
                    raise FileFormatError(f"{path}: got {file.tell()} bytes, allowed: at least the 24 of a GGUF header")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be opened: {error.strerror}") from None
        self.buffer = memoryview(self._map)
        cursor = _Cursor(self.buffer, self.path)
        num_tensors, num_kv = self._header(cursor)
        self.metadata: Mapping[str, object] = self._metadata(cursor, num_kv)
        self.alignment = self._alignment(cursor)
        self.tensors: Mapping[str, GGUFTensor] = self._directory(cursor, num_tensors)
        """Name -> tensor, in the order of the file."""

    def _header(self, cursor: _Cursor) -> tuple[int, int]:
        magic = bytes(self.buffer[:4])
        if magic != b"GGUF":
            cursor.fail("magic", magic, "b'GGUF'")
        cursor.at = 4
        self.version = cursor.number("I", "version")
        if self.version in (2 << 24, 3 << 24):
            raise ModelError(f"{self.path}: a big-endian GGUF file; only little-endian ones are read")
        if self.version not in (2, 3):
            cursor.fail("version", self.version, "2 or 3")
        # The smallest entries: a tensor has name (8+1), dims (4+8), type, offset (4+8); a pair key (8+1), type, 1 byte.
        num_tensors = cursor.count("number of tensors", item=33, limit=MAX_TENSORS)
        num_kv = cursor.count("number of metadata entries", item=14, limit=MAX_KV)
        return num_tensors, num_kv

    def _metadata(self, cursor: _Cursor, num_kv: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for i in range(num_kv):
            key = cursor.string(f"key of metadata entry {i}", limit=MAX_NAME)
            if key in metadata:
                cursor.fail("metadata key", repr(key) + " twice", "each key once")
            metadata[key] = cursor.value(key)
        return metadata

    def _alignment(self, cursor: _Cursor) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
            cursor.fail("general.alignment", alignment, "a power of two from 8 to 65536")
        return alignment

    def _directory(self, cursor: _Cursor, num_tensors: int) -> dict[str, GGUFTensor]:
        entries = [self._entry(cursor, i) for i in range(num_tensors)]
        base = -(-cursor.at // self.alignment) * self.alignment
        size = len(self.buffer)
        if num_tensors and base > size:
            cursor.fail("start of the tensor data", base, f"within the file's {size} bytes")
        tensors: dict[str, GGUFTensor] = {}
        for name, type_name, shape, nbytes, offset in entries:
            if name in tensors:
                cursor.fail("tensor name", repr(name) + " twice", "each name once")
            if offset % self.alignment:
                cursor.fail(f"offset of tensor {name}", offset, f"a multiple of the alignment {self.alignment}")
            if offset + nbytes > size - base:
                cursor.fail(f"tensor {name}", f"{nbytes} bytes at {offset} of the data", f"up to {size - base}")
            at = base + offset
            tensors[name] = GGUFTensor(name, type_name, shape, nbytes, at, self.buffer[at : at + nbytes])
        end, last = base, ""
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if tensor.offset < end:
                cursor.fail(f"tensor {tensor.name}", f"an overlap with {last}", "tensors that do not overlap")
            end, last = tensor.offset + tensor.nbytes, tensor.name
        return tensors

    def _entry(self, cursor: _Cursor, index: int) -> tuple[str, str, tuple[int, ...], int, int]:
        name = cursor.string(f"name of tensor {index}", limit=MAX_NAME)
        num_dims = cursor.number("I", f"number of dimensions of tensor {name}")
        if not 1 <= num_dims <= MAX_DIMS:
            cursor.fail(f"number of dimensions of tensor {name}", num_dims, f"1 to {MAX_DIMS}")
        dims = [cursor.number("Q", f"dimensions of tensor {name}") for _ in range(num_dims)]
        kind = cursor.number("I", f"type of tensor {name}")
        offset = cursor.number("Q", f"offset of tensor {name}")
        if kind not in GGML_TYPES:
            cursor.fail(f"type of tensor {name}", kind, "one of " + ", ".join(map(str, GGML_TYPES)))
        type_name, block, block_bytes = GGML_TYPES[kind]
        count = math.prod(dims)  # Python integers do not overflow
        if not 0 < count <= len(self.buffer) * 8:
            cursor.fail(
                f"dimensions of tensor {name}", dims, f"sizes from 1 whose product fits {len(self.buffer)} bytes"
            )
        if dims[0] % block:
            cursor.fail(f"columns of tensor {name} ({type_name})", dims[0], f"a multiple of {block}")
        return name, type_name, tuple(reversed(dims)), count // block * block_bytes, offset
