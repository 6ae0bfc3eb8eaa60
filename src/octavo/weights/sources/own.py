"""Octavo's own cache: what the catalogue's names fetched, a folder each, <cache>/models/<name>-<start of sha256>/."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.weights.sources.place import Entry, Wanted, pick

FOLDER = re.compile(r"(.+)-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class OwnCache:
    """A folder appears when a fetch begins; its .gguf appears when the hash was right."""

    caches: tuple[Path, ...]
    key: str = "octavo"
    title: str = "Octavo's cache"
    removal: str = "octavo rm {name}"

    @property
    def roots(self) -> tuple[Path, ...]:
        return tuple(cache / "models" for cache in self.caches)

    def entries(self) -> list[Entry]:
        found = []
        for root in self.roots:
            folders = sorted(root.iterdir()) if root.is_dir() else []
            for folder in folders:
                name = FOLDER.fullmatch(folder.name)
                if name is None or folder.is_symlink() or not folder.is_dir():
                    continue
                files = tuple(f for f in sorted(folder.rglob("*")) if f.is_file() and f.name != "lock")
                models = [f for f in files if f.suffix == ".gguf"]
                if files:
                    found.append(
                        Entry(
                            name=name[1],
                            place=self.key,
                            path=models[0] if models else folder,
                            files=files,
                            file=models[0].name if models else "",
                            whole=len(models) == 1,
                        )
                    )
        return found

    def find(self, wanted: Wanted) -> Entry | None:
        return pick(self.entries(), wanted)
