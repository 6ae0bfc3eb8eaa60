"""The port of a place where models lie, what it answers, and what a user asks for. Places are read, never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from octavo.errors import FetchError
from octavo.obs.log import get_logger
from octavo.weights.gguf_parts import part_names
from octavo.weights.tags import choose_file, is_model, tag_of, whole_models

log = get_logger(__name__)

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
HUBS = ("https://", "http://", "hf.co/", "www.huggingface.co/", "huggingface.co/")
"""Beginnings that mean a Hugging Face repository and add nothing."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine."""

    name: str
    """What to type to get it."""
    place: str
    """Key of its place."""
    path: Path
    """What `open_checkpoint` takes: a directory, or a GGUF file (the first part of a split one)."""
    files: tuple[Path, ...]
    """All its files, for a directory those that were found in it."""
    repo: str = ""
    """owner/name where the place knows one."""
    file: str = ""
    """Path of the GGUF file in the repository; "" for a directory."""
    whole: bool = True
    """Whether nothing is missing; only whole models are found."""
    note: str = ""
    """What the user should know when it is used."""

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in self.files if path.exists())


class Wanted(msgspec.Struct, frozen=True):
    """A model as a user names it: `name` is owner/repo or a word, `choice` the tag or file after the colon."""

    text: str
    name: str
    choice: str

    @classmethod
    def parse(cls, text: str) -> Wanted:
        rest = text
        for start in HUBS:
            rest = rest.removeprefix(start)
        name, _, choice = rest.partition(":")
        return cls(text, name.rstrip("/"), choice)

    @property
    def is_repo(self) -> bool:
        return REPO.fullmatch(self.name) is not None


class Place(Protocol):
    """Folders of one program. Nothing here writes; damaged things are skipped with a warning."""

    @property
    def key(self) -> str:
        """Short name, as `octavo list` prints it."""

    @property
    def title(self) -> str:
        """For sentences."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders looked into, present or not, without repeats."""

    @property
    def removal(self) -> str:
        """How the user removes a model there; "{name}" and "{path}" stand for the model's."""

    def entries(self) -> list[Entry]:
        """All models, sorted by name. Reads names and small manifests, no weights."""

    def find(self, wanted: Wanted) -> Entry | None:
        """The whole model that is meant, None if it is not here. Raises FetchError where several may be meant, or a
        manifest that names it is damaged."""


def pick(entries: Sequence[Entry], wanted: Wanted) -> Entry | None:
    """Of a place's entries the one that is meant: its name, owner/repo with or without a tag, or a file's name."""
    whole = [e for e in entries if e.whole]
    for entry in whole:
        if entry.name.lower() in (wanted.text.lower(), f"{wanted.name}:{wanted.choice}".rstrip(":").lower()):
            return entry
    mine = [e for e in whole if e.repo and e.repo.lower() == wanted.name.lower()]
    if mine:
        return _of_repo(mine, wanted)
    if wanted.choice or "/" in wanted.name:
        return None
    word = wanted.name.lower()
    named = [e for e in whole if word in _words(e)]
    if len({e.path for e in named}) > 1:
        raise FetchError(f"{wanted.text}: several models have that name: {', '.join(e.name for e in named)}")
    return named[0] if named else None


def _words(entry: Entry) -> tuple[str, ...]:
    """Names by which a file is known without its repository."""
    base = (entry.file or entry.repo).lower().rpartition("/")[2]
    return (base, base.removesuffix(".gguf"))


def _of_repo(entries: Sequence[Entry], wanted: Wanted) -> Entry | None:
    if not wanted.choice:
        for entry in entries:
            if not entry.file:
                return entry
    by_file = {e.file: e for e in entries if e.file}
    names = [part for file in by_file for part in part_names(file)]
    try:
        found = choose_file(wanted.name, wanted.choice, names)
    except FetchError as error:
        if "several" in str(error):
            raise
        return None
    return by_file[found] if found is not None else None


def gguf_entries(place: str, repo: str, files: dict[str, Path], *, prefix: str = "") -> list[Entry]:
    """Entries for the GGUF models among `files` (path in the repository -> path on disk), split files as one.

    The name is repo:TAG where that is unique, else repo:file. A split file that lacks parts is not whole.
    """
    firsts = list(dict.fromkeys(part_names(name)[0] for name in files if is_model(name)))
    whole = set(whole_models(list(files)))
    tags = [tag_of(name) for name in firsts]
    found = []
    for name, tag in zip(firsts, tags, strict=True):
        short = tag if tag and tags.count(tag) == 1 else name
        mine = tuple(files[part] for part in part_names(name) if part in files)
        label = f"{prefix}{repo}:{short}" if repo else name
        found.append(
            Entry(name=label, place=place, path=mine[0], files=mine, repo=repo, file=name, whole=name in whole)
        )
    return found


def directory_entry(place: str, repo: str, folder: Path, files: dict[str, Path]) -> Entry | None:
    """The safetensors model of a folder with a config.json, whole if every shard of its index is there; else None."""
    shards = {name for name in files if name.endswith(".safetensors") and "/" not in name}
    if "config.json" not in files or not (shards or "model.safetensors.index.json" in files):
        return None
    wanted = shards
    if index := files.get("model.safetensors.index.json"):
        try:
            wanted = set(map(str, msgspec.json.decode(index.read_bytes())["weight_map"].values()))
        except (OSError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is skipped: %s cannot be read (%s)", folder, index.name, error)
            return None
    kept = tuple(path for name, path in files.items() if "/" not in name and not name.endswith(".gguf"))
    return Entry(name=repo, place=place, path=folder, files=kept, repo=repo, whole=bool(wanted) and wanted <= shards)


def walk(root: Path, *, depth: int, inside: Path | None = None) -> Iterator[Path]:
    """Files below `root`, at most `depth` folders down, in order; hidden ones are left out. What a link leads out of
    `inside` (default: `root`) and what cannot be read is skipped with a warning."""
    inside = (inside or root).resolve()
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            log.warning("%s is skipped: %s", root, error.strerror)
        return
    for name in names:
        yield from _below(root / name, inside, depth)


def _below(path: Path, inside: Path, depth: int) -> Iterator[Path]:
    if path.name.startswith("."):
        return
    if path.is_symlink() and not stays_inside(path, inside):
        return
    try:
        if path.is_file():
            yield path
        elif path.is_dir() and depth > 0:
            for name in sorted(os.listdir(path)):
                yield from _below(path / name, inside, depth - 1)
    except OSError as error:
        log.warning("%s is skipped: %s", path, error.strerror)


def stays_inside(path: Path, inside: Path) -> bool:
    """Whether `path` is there and, links followed, still below `inside` (which is resolved); a warning if not."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        log.warning("%s is skipped: its link leads nowhere", path)
        return False
    if not target.is_relative_to(inside):
        log.warning("%s is skipped: its link leads out of %s (give the path %s itself to use it)", path, inside, target)
        return False
    return True
