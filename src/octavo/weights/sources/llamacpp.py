"""llama.cpp's cache: flat files, owner_repository_file.gguf, beside a manifest=owner=repository=tag.json each."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from octavo.config.folders import cache_base
from octavo.weights.sources.place import Entry, Wanted, gguf_entries, pick, walk

MANIFEST = re.compile(r"manifest=([A-Za-z0-9][\w.-]*)=([A-Za-z0-9][\w.-]*)=[^/]*\.json")


def cache_folders() -> tuple[Path, ...]:
    value = os.environ.get("LLAMA_CACHE")
    return (Path(value).expanduser() if value else cache_base() / "llama.cpp",)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The manifests say where a file's name splits into repository and file; without one the file's own name stands."""

    roots: tuple[Path, ...]
    key: str = "llama.cpp"
    title: str = "llama.cpp's cache"
    removal: str = "delete {path}"

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for root in self.roots:
            paths = list(walk(root, depth=0))
            repos = {
                f"{m[1]}_{m[2]}_": f"{m[1]}/{m[2]}"
                for path in paths
                if (m := MANIFEST.fullmatch(path.name)) is not None
            }
            by_repo: dict[str, dict[str, Path]] = {}
            for path in paths:
                start = max((s for s in repos if path.name.startswith(s)), key=len, default="")
                by_repo.setdefault(repos.get(start, ""), {})[path.name[len(start) :]] = path
            for repo, files in by_repo.items():
                found += gguf_entries(self.key, repo, files)
        return found

    def find(self, wanted: Wanted) -> Entry | None:
        return pick(self.entries(), wanted)
