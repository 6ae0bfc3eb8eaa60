"""Ollama's folders: a manifest names blobs by their hash.

    manifests/<host>/<owner>/<name>/<tag>     JSON: layers, each with mediaType, digest and size
    blobs/sha256-<64 hex digits>              the GGUF file of the layer with the model's mediaType

`library` is the owner of names without one; `latest` is the tag of names without one. Manifests are small files that
anybody may have written: every field is checked, and a digest never becomes a path before it is 64 hex digits.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.errors import FetchError
from octavo.weights.sources.place import Entry, Wanted, log, stays_inside, walk

MODEL = "application/vnd.ollama.image.model"
UNUSED = {
    "application/vnd.ollama.image.template": "template",
    "application/vnd.ollama.image.params": "params",
    "application/vnd.ollama.image.system": "system message",
    "application/vnd.ollama.image.adapter": "adapter",
    "application/vnd.ollama.image.projector": "projector",
}
"""Layers that Octavo does not use, in words."""
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MOST = 1 << 20
"""Bytes of a manifest."""
DEFAULT_HOST = "registry.ollama.ai"
SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""Where the service keeps models that the installer set up."""


class Layer(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str
    digest: str
    size: int


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    layers: list[Layer]


def model_folders() -> tuple[Path, ...]:
    value = os.environ.get("OLLAMA_MODELS")
    return (Path(value).expanduser() if value else Path.home() / ".ollama" / "models", SYSTEM)


@dataclass(frozen=True, slots=True)
class Ollama:
    roots: tuple[Path, ...]
    key: str = "ollama"
    title: str = "Ollama"
    removal: str = "ollama rm {name}"

    def entries(self) -> list[Entry]:
        found = []
        for root in self.roots:
            for name, manifest in _manifests(root):
                try:
                    found.append(self._entry(root, name, manifest))
                except FetchError as error:
                    log.warning("%s is skipped: %s", name, error)
        return found

    def find(self, wanted: Wanted) -> Entry | None:
        for root in self.roots:
            for name, manifest in _manifests(root):
                if _means(wanted, name):
                    return self._entry(root, name, manifest)
        return None

    def _entry(self, root: Path, name: str, manifest: Path) -> Entry:
        """Raises FetchError for a manifest that cannot be followed."""
        layers = _read(manifest)
        models = [layer for layer in layers if layer.media_type == MODEL]
        if len(models) != 1:
            raise FetchError(f"{manifest}: got {len(models)} model layers, allowed: one")
        digest = DIGEST.fullmatch(models[0].digest)
        if digest is None:
            raise FetchError(f"{manifest}: digest: got {models[0].digest[:80]!r}, allowed: sha256: and 64 hex digits")
        blob = root / "blobs" / f"sha256-{digest[1]}"
        if not stays_inside(blob, root.resolve()) or not blob.is_file():
            raise FetchError(f"{manifest}: its blob {blob} is not there; ollama pull {name} fetches it again")
        if blob.stat().st_size != models[0].size:
            got = f"{blob.stat().st_size} bytes, allowed: the manifest's {models[0].size}"
            raise FetchError(f"{blob}: got {got}; ollama pull {name} fetches it again")
        unused = [word for kind, word in UNUSED.items() if any(layer.media_type == kind for layer in layers)]
        note = f"Ollama's {' and '.join(unused)} are not used; the GGUF file's own are" if unused else ""
        host, _, repo = name.rpartition(":")[0].partition("/")
        return Entry(
            name=name,
            place=self.key,
            path=blob,
            files=(blob,),
            repo=repo if "." in host and "/" in repo else "",
            note=note,
        )


def _manifests(root: Path) -> list[tuple[str, Path]]:
    """(name as Ollama prints it, path), sorted by name."""
    found = []
    folder = root / "manifests"
    for path in walk(folder, depth=4):
        parts = path.relative_to(folder).parts
        if len(parts) != 4:
            continue
        host, owner, name, tag = parts
        shown = f"{name}:{tag}" if owner == "library" else f"{owner}/{name}:{tag}"
        found.append((shown if host == DEFAULT_HOST else f"{host}/{owner}/{name}:{tag}", path))
    return sorted(found)


def _means(wanted: Wanted, name: str) -> bool:
    """Whether a manifest's name is what was asked for. Hugging Face repositories count with or without their host."""
    asked = f"{wanted.name}:{wanted.choice or 'latest'}".lower()
    return asked in (name.lower(), name.lower().removeprefix("hf.co/").removeprefix("huggingface.co/"))


def _read(manifest: Path) -> list[Layer]:
    try:
        with manifest.open("rb") as file:
            raw = file.read(MOST + 1)
        if len(raw) > MOST:
            raise FetchError(f"{manifest}: got more than {MOST} bytes, which no manifest has")
        return msgspec.json.decode(raw, type=Manifest).layers
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FetchError(f"{manifest}: is no manifest of Ollama: {error}") from None
