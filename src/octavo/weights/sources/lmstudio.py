"""LM Studio's folders: publisher/repository/file.gguf, or a directory with safetensors there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.weights.sources.place import Entry, Wanted, directory_entry, gguf_entries, pick, walk

DEPTH = 3


def model_folders() -> tuple[Path, ...]:
    """The folder of today and the one of older versions."""
    return (Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models")


@dataclass(frozen=True, slots=True)
class LMStudio:
    roots: tuple[Path, ...]
    key: str = "lmstudio"
    title: str = "LM Studio"
    removal: str = "remove it in LM Studio (My Models), or delete {path}"

    def entries(self) -> list[Entry]:
        found: list[Entry] = []
        for root in self.roots:
            repositories: dict[str, dict[str, Path]] = {}
            for path in walk(root, depth=DEPTH):
                publisher, _, rest = str(path.relative_to(root)).partition("/")
                repository, _, name = rest.partition("/")
                if name:
                    repositories.setdefault(f"{publisher}/{repository}", {})[name] = path
            for repo, files in repositories.items():
                directory = directory_entry(self.key, repo, root / repo, files)
                found += ([directory] if directory else []) + gguf_entries(self.key, repo, files)
        return found

    def find(self, wanted: Wanted) -> Entry | None:
        return pick(self.entries(), wanted)
