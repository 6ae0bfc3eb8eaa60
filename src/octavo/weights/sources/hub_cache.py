"""The Hugging Face cache, read without its client:

    models--owner--name/refs/main -> a commit;  snapshots/<commit>/file -> a link to ../../blobs/<etag>
    models--owner--name/blobs/<etag>: a file, or a link to ../../blobs/<xx>/<hash> (beside the repositories, <xx> the
    hash's first two digits), which repositories share; whoever makes such a link or deletes the file locks <hash>.lock

A file appears in a snapshot when it was fetched whole.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.config.folders import cache_base
from octavo.weights.sources.place import Entry, Wanted, directory_entry, gguf_entries, pick, walk

FOLDER = re.compile(r"models--([A-Za-z0-9][\w.-]*?)--([A-Za-z0-9][\w.-]*)")
SHARED = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{62}")
"""A shared file's path in the store."""
DEPTH = 2
"""Folders of a repository's own that are looked into."""


def cache_folders() -> tuple[Path, ...]:
    """Where the client keeps repositories, by its own variables."""
    if value := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return (Path(value).expanduser(),)
    home = os.environ.get("HF_HOME")
    return ((Path(home).expanduser() if home else cache_base() / "huggingface") / "hub",)


@dataclass(frozen=True, slots=True)
class HubCache:
    """Of several snapshots the one of `main` counts, else the newest."""

    roots: tuple[Path, ...]
    key: str = "huggingface"
    title: str = "the Hugging Face cache"
    removal: str = "octavo rm --hf {name}"

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for root in self.roots:
            for folder in sorted(root.iterdir()) if root.is_dir() else ():
                name = FOLDER.fullmatch(folder.name)
                if name is not None and folder.is_dir() and not folder.is_symlink():
                    found += self._repository(folder, f"{name[1]}/{name[2]}")
        return found

    def find(self, wanted: Wanted) -> Entry | None:
        return pick(self.entries(), wanted)

    def _repository(self, folder: Path, repo: str) -> list[Entry]:
        snapshot = newest_snapshot(folder)
        if snapshot is None:
            return []
        files = {str(path.relative_to(snapshot)): path for path in walk(snapshot, depth=DEPTH, inside=folder.parent)}
        found = gguf_entries(self.key, repo, files)
        directory = directory_entry(self.key, repo, snapshot, files)
        if directory is not None:
            # A fetch that was cut short may lack any of the files, not only shards: it must be finished.
            whole = directory.whole and not is_cut_short(folder)
            found.insert(0, msgspec.structs.replace(directory, whole=whole))
        return found


def is_cut_short(folder: Path) -> bool:
    """Whether a fetch of what `main` is now left a part: one whose content is not there, and that was written since
    `main` moved. Others are left over for ever: the client names its parts <etag>.<random>.incomplete, each fetch its
    own."""
    main, blobs = folder / "refs" / "main", folder / "blobs"
    since = main.stat().st_mtime_ns if main.exists() else 0
    for part in blobs.glob("*.incomplete"):
        etags = {part.stem, part.stem.rpartition(".")[0] or part.stem}
        if not any((blobs / etag).exists() for etag in etags) and part.stat().st_mtime_ns >= since:
            return True
    return False


def newest_snapshot(folder: Path) -> Path | None:
    """The snapshot of `main`, else the one written last; None where there is none."""
    try:
        commit = (folder / "refs" / "main").read_text().strip()
        if re.fullmatch(r"[0-9a-f]{40}", commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    except (OSError, UnicodeDecodeError):
        pass
    try:
        snapshots = [path for path in (folder / "snapshots").iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return None
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def shared_blob(link: Path, root: Path) -> Path | None:
    """The file of `root`'s store that `link`, a repository's `blobs/<etag>`, leads to; None where it is none."""
    if not link.is_symlink():
        return None
    store, target = (root / "blobs").resolve(), link.resolve()
    inside = target.relative_to(store).as_posix() if target.is_relative_to(store) else ""
    return root / "blobs" / inside if SHARED.fullmatch(inside) and target.is_file() else None


def unshared(root: Path, blobs: Collection[Path], leaving: Collection[Path] = ()) -> list[Path]:
    """Those of `blobs` in `root`'s store that no repository's link leads to, the links `leaving` not counted. Reads
    the links themselves: the client's lists of them (<hash>.refs) may be incomplete."""
    links = root.glob("*--*/blobs/*") if blobs else ()
    used = {shared_blob(link, root) for link in links if link not in leaving}
    return sorted(set(blobs) - used)


def delete_shared(root: Path, blob: Path) -> None:
    """Deletes a file of the store and its list of links, unless a link leads to it by now."""
    with blob.with_name(f"{blob.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if unshared(root, [blob]):
            blob.unlink(missing_ok=True)
            blob.with_name(f"{blob.name}.refs").unlink(missing_ok=True)
