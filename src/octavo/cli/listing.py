"""`octavo list`: the models on this machine, wherever they lie."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Spec

if TYPE_CHECKING:
    from octavo.weights.sources.place import Entry


class ListFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    download_dir: str | None = None
    """Where fetched models are kept, beside the usual places."""
    json: bool = False
    """As JSON: an array of objects."""
    names: bool = False
    """Names alone, one a line, those of the catalogue too (for scripts and shells)."""


class Row(msgspec.Struct, frozen=True):
    """A line of the list."""

    name: str
    source: str
    size: int
    """Bytes."""
    format: str
    architecture: str
    path: str


NOTES = """\
A name of the list is what every command takes: octavo chat NAME. Only models are listed that a command would find: the
Hugging Face cache, LM Studio, llama.cpp's cache and Ollama are read and never written. "incomplete" is a fetch that was
cut short; octavo pull NAME goes on with it.
"""

SPEC = Spec("list", "List the models on this machine, wherever they lie. Reads headers only.", (ListFlags,), (), NOTES)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    flags = parsed[ListFlags]
    from octavo.weights.sources.table import places

    entries = [entry for place in places(flags.download_dir) for entry in place.entries()]
    if flags.names:
        from octavo.weights.catalogue import load_catalogue

        names = [*load_catalogue(), *(entry.name for entry in entries if entry.whole)]
        print("\n".join(dict.fromkeys(names)))
        return OK
    rows = [row_of(entry) for entry in entries]
    if flags.json:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    elif rows:
        print(table(rows))
    else:
        print("no models on this machine; octavo pull smollm2 fetches one (98 MB)", file=sys.stderr)
    return OK


def row_of(entry: Entry) -> Row:
    from octavo.weights.peek import UNKNOWN, look

    found = look(entry.path, name=entry.file or entry.name)
    form, architecture = found if entry.whole else ("incomplete", UNKNOWN)
    return Row(entry.name, entry.place, entry.size, form, architecture, str(entry.path))


def table(rows: list[Row]) -> str:
    """Columns wide enough for what is in them; the path comes last and is never cut."""
    from pathlib import Path

    from octavo.weights.unknown import short_path

    head = ("NAME", "SOURCE", "SIZE", "FORMAT", "ARCHITECTURE", "PATH")
    cells = [head, *((r.name, r.source, size_text(r.size), r.format, r.architecture, "") for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(5)]
    paths = ["PATH", *(short_path(Path(r.path)) for r in rows)]
    return "\n".join(
        "  ".join(c.rjust(w) if i == 2 else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=False)))
        + f"  {path}"
        for line, path in zip(cells, paths, strict=True)
    )


def size_text(size: int) -> str:
    """Megabytes of 10^6 below 1 GB, gigabytes above."""
    return f"{size / 1e9:.1f} GB" if size >= 999_500_000 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size} B"
