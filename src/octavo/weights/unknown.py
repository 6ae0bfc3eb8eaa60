"""The error for a model that nobody knows: the nearest names, and where it was looked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.errors import FetchError
from octavo.weights.sources.place import Place, Wanted

NEAREST = 3


def unknown_model(wanted: Wanted, here: Sequence[Place], catalogue: Mapping[str, object]) -> FetchError:
    """One line: what was asked, what is near, where it was looked for, what would be fetched."""
    names = [*catalogue, *(entry.name for place in here for entry in place.entries())]
    near = nearest(wanted.text, names)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    looked = "; ".join(f"{place.title} ({', '.join(map(short_path, place.roots))})" for place in here)
    return FetchError(
        f"{wanted.text!r}: no such file, directory or model{hint}. Looked in: the catalogue ({', '.join(catalogue)}); "
        f"{looked}. Fetched from Hugging Face is org/name or org/name:TAG. octavo list shows what is here"
    )


def nearest(text: str, names: Sequence[str]) -> list[str]:
    """Up to three names like `text`, whole or without owner and tag, the likeliest first."""
    by_key: dict[str, str] = {}
    for name in names:
        for key in (name, name.rpartition("/")[2], name.rpartition("/")[2].partition(":")[0]):
            by_key.setdefault(key.lower(), name)
    close = difflib.get_close_matches(text.lower(), by_key, n=2 * NEAREST, cutoff=0.6)
    return list(dict.fromkeys(by_key[key] for key in close))[:NEAREST]


def short_path(path: Path) -> str:
    """With ~ for the home folder."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
