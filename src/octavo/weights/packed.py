"""Arrays of GGUF metadata on their way to the front half: the file's own bytes, no object an entry until it is read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from octavo.errors import FileFormatError
from octavo.weights.gguf import SCALARS, GGUFArray

STRINGS = "s"
CODES = frozenset((STRINGS, *SCALARS.values()))


def pack(array: GGUFArray) -> dict[str, Any]:
    """Plain data: {"code": "s" (u64 length and UTF-8 each) or a struct code, "count": …, "data": the bytes}."""
    return {"code": array.code or STRINGS, "count": len(array), "data": array.raw}


def is_packed(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"code", "count", "data"} and value["code"] in CODES


def unpack(value: Mapping[str, Any]) -> list[Any]:
    """All elements as a new list. Raises FileFormatError where the bytes do not hold them."""
    code, count, data = value["code"], value["count"], bytes(value["data"])
    try:
        if code != STRINGS:
            return list(struct.unpack(f"<{count}{code}", data))
        length, at, found = struct.Struct("<Q").unpack_from, 0, []
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0]
            found.append(data[start:at].decode())
        return found
    except (struct.error, UnicodeDecodeError) as error:
        raise FileFormatError(f"an array of the metadata: {error}") from None
