"""Removing models: whose a model is, which files would go, and that none of them lies outside its cache."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo.errors import ConfigError, FetchError
from octavo.weights.sources.hub_cache import FOLDER as HUB_FOLDER
from octavo.weights.sources.hub_cache import delete_shared, shared_blob, unshared
from octavo.weights.sources.own import FOLDER as OWN_FOLDER
from octavo.weights.sources.place import Entry, Place, Wanted

OWN, HUB = "octavo", "huggingface"


class Removal(msgspec.Struct, frozen=True):
    """What would go. `paths`: files, links and folders of `root`, folders with all they hold. `shared`: files that they
    alone lead to and that other repositories may come to share: they go last, and only if that is so still."""

    name: str
    root: Path
    paths: tuple[Path, ...]
    size: int
    """Bytes of both."""
    shared: tuple[Path, ...] = ()


def candidates(text: str, here: Sequence[Place]) -> list[Entry]:
    """Every model of that name (or path) on this machine, incomplete ones too."""
    wanted, path = Wanted.parse(text), Path(text).expanduser().absolute()
    names = {text.lower(), f"{wanted.name}:{wanted.choice}".rstrip(":").lower()}
    found = []
    for place in here:
        entries = place.entries()
        exact = [e for e in entries if e.name.lower() in names or path in (e.path, *e.files)]
        whole_repo = [e for e in entries if e.repo and e.repo.lower() == wanted.name.lower() and not wanted.choice]
        found += exact or whole_repo[:1]
    return found


def plan(text: str, here: Sequence[Place], *, hub: bool) -> Removal:
    """What removing `text` takes away. Raises FetchError (no such model) and ConfigError, which says whose it is."""
    found = candidates(text, here)
    roots = {place.key: place.roots for place in here}
    own = [entry for entry in found if entry.place == OWN]
    if own:
        return _own(own[0], roots[OWN])
    hubs = [entry for entry in found if entry.place == HUB]
    if hubs and hub:
        return _hub(hubs[0], roots[HUB], whole_repository=Wanted.parse(text).choice == "")
    if found:
        raise ConfigError(_whose(text, found[0], here))
    if Path(text).expanduser().exists():
        raise ConfigError(f"{text}: got a path outside Octavo's cache, allowed: a model that octavo pull fetched")
    raise FetchError(f"{text!r}: no such model on this machine; octavo list shows what is here")


def _whose(text: str, entry: Entry, here: Sequence[Place]) -> str:
    place = next(place for place in here if place.key == entry.place)
    how = place.removal.format(name=entry.name, path=entry.path)
    return f"{text}: belongs to {place.title}, not to Octavo; to remove it: {how}"


def _own(entry: Entry, roots: Sequence[Path]) -> Removal:
    folder = next(f for f in (entry.path, *entry.path.parents) if OWN_FOLDER.fullmatch(f.name))
    return Removal(entry.name, _root_of(folder, roots), (folder,), _bytes([folder]))


def _hub(entry: Entry, roots: Sequence[Path], *, whole_repository: bool) -> Removal:
    """The repository's folder, or one GGUF file's links in all snapshots and the blobs that nothing else names."""
    folder = next(f for f in entry.path.parents if HUB_FOLDER.fullmatch(f.name))
    root = _root_of(folder, roots)
    links = [link for link in (folder / "snapshots").rglob("*") if link.is_symlink() or link.is_file()]

    def inside(link: Path) -> tuple[str, ...]:
        return link.relative_to(folder / "snapshots").parts[1:]  # without the commit

    names = {inside(path) for path in entry.files}
    doomed = [link for link in links if inside(link) in names]
    whole = whole_repository or set(doomed) == set(links)
    blobs = set((folder / "blobs").glob("*"))
    if not whole:
        kept = {_blob(link, folder / "blobs") for link in links if link not in doomed}
        blobs &= {_blob(link, folder / "blobs") for link in doomed} - kept
    shared = unshared(root, {file for blob in blobs if (file := shared_blob(blob, root))}, leaving=blobs)
    paths = (folder,) if whole else (*doomed, *sorted(blobs))
    return Removal(entry.repo if whole else entry.name, root, paths, _bytes([*paths, *shared]), tuple(shared))


def _blob(link: Path, blobs: Path) -> Path | None:
    """What of `blobs` a snapshot's link names: a file, or a link to one that repositories share."""
    if not link.is_symlink():
        return None
    target = link.parent / os.readlink(link)
    return blobs / target.name if target.parent.resolve() == blobs.resolve() else None


def _root_of(folder: Path, roots: Sequence[Path]) -> Path:
    for root in roots:
        if folder.parent == root and not folder.is_symlink() and folder.resolve().is_relative_to(root.resolve()):
            return root
    raise ConfigError(f"{folder}: got a folder outside {', '.join(map(str, roots))}, allowed: one in there")


def _bytes(paths: Sequence[Path]) -> int:
    """Allocated by files; links and other hard links of a file count nothing extra."""
    files = {f for path in paths for f in ([path] if not path.is_dir() else path.rglob("*")) if not f.is_symlink()}
    return sum(f.stat().st_size for f in files if f.is_file())


def remove(removal: Removal) -> None:
    """Deletes what was planned. Raises FetchError where another process is fetching the model at this moment."""
    for path in removal.paths:
        lock = path / "lock"
        if lock.is_file():
            with lock.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise FetchError(f"{removal.name}: is being fetched by another process") from None
                shutil.rmtree(path)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in removal.shared:
        delete_shared(removal.root, path)
