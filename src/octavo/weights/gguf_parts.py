"""Split GGUF files: `name-00001-of-00003.gguf` and its neighbours, opened from any of them as one.

Every part is a GGUF file of its own with some of the tensors; the first holds the metadata, all say split.no (from 0),
split.count and split.tensors.count (of all parts). A part is found by its name and believed by its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import FileFormatError, ModelError
from octavo.weights.gguf import GGUFFile, GGUFTensor

PART = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
MAX_PARTS = 4096


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """All parts of a model, read as one file: the usual one, or several."""

    path: Path
    """Of the first part."""
    parts: tuple[GGUFFile, ...]
    metadata: Mapping[str, object]
    tensors: Mapping[str, GGUFTensor]


def part_names(name: str) -> list[str]:
    """File names of all parts of the model that `name` (perhaps with folders before it) is a part of, in order.

    Just `name` where it is not named like a part.
    """
    found = PART.fullmatch(name)
    if found is None or not 1 < int(found["count"]) <= MAX_PARTS:
        return [name]
    return [f"{found['stem']}-{i:05d}-of-{found['count']}.gguf" for i in range(1, int(found["count"]) + 1)]


def is_later_part(name: str) -> bool:
    """Whether a file is named like the second or a later part: no model by itself."""
    names = part_names(name)
    return len(names) > 1 and name != names[0]


def open_parts(path: Path) -> GGUFModel:
    """Open a GGUF file and, where it is one part of several, all others beside it.

    Raises ModelError (a part is missing or is not named like one) and FileFormatError (damaged, or of another model),
    both with the name of the file in question.
    """
    first = GGUFFile(path)
    count = _number(first, "split.count", 1)
    if count == 1:
        return GGUFModel(path, (first,), first.metadata, first.tensors)
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != count:
        raise ModelError(
            f"{path}: one part of a GGUF file split in {count}: got this name, allowed: NAME-00001-of-{count:05d}.gguf "
            "(the other parts are found by it)"
        )
    missing = [p for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{missing[0]}{more}: no such file; it is part of the model that {path.name} belongs to")
    parts = tuple(first if p == path else GGUFFile(p) for p in paths)
    return GGUFModel(paths[0], parts, parts[0].metadata, _join(parts))


def _join(parts: Sequence[GGUFFile]) -> dict[str, GGUFTensor]:
    """The tensors of all parts, after checking that they belong together."""
    total = _number(parts[0], "split.tensors.count", None)
    tensors: dict[str, GGUFTensor] = {}
    for no, part in enumerate(parts):
        for key, want in (("split.no", no), ("split.count", len(parts)), ("split.tensors.count", total)):
            got = _number(part, key, None)
            if got != want:
                raise FileFormatError(f"{part.path}: {key}: got {got}, allowed: {want} (a part of another model?)")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise FileFormatError(f"{part.path}: tensor {name}: got it in two parts, allowed: each in one")
            tensors[name] = tensor
    if total is not None and len(tensors) != total:
        raise FileFormatError(f"{parts[0].path}: split.tensors.count: got {total}, allowed: {len(tensors)}, all parts'")
    return tensors


def _number(part: GGUFFile, key: str, default: int | None) -> int | None:
    value = part.metadata.get(key, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise FileFormatError(f"{part.path}: {key}: got {value!r}, allowed: a whole number")
    return value
