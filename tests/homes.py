"""A home directory of a test's own, and models in it as other programs keep them. Nothing of the real home is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.weights.sources import ollama
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors

VARIABLES = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "OCTAVO_CONFIG", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
    *("HF_HUB_OFFLINE", "OLLAMA_MODELS", "LLAMA_CACHE"),
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`folder` as HOME, with no variable that leads elsewhere."""
    folder.mkdir(exist_ok=True)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(ollama, "SYSTEM", folder / "no-system-ollama")
    return folder


def model_bytes(**metadata: Any) -> bytes:
    """A small GGUF file that opens; Q4_K_M by its file type unless told otherwise."""
    extra = {"general.file_type": 15, **{key.replace("__", "."): value for key, value in metadata.items()}}
    return gguf_bytes({**LLAMA, **extra}, llama_tensors())


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def put_hub(home: Path, repo: str, files: Mapping[str, bytes], *, commit: str = COMMIT) -> Path:
    """A repository in the Hugging Face cache: blobs, links in a snapshot, refs/main. Returns the snapshot."""
    folder = home / ".cache/huggingface/hub" / f"models--{repo.replace('/', '--')}"
    for name, data in files.items():
        blob = write(folder / "blobs" / hashlib.sha256(data).hexdigest(), data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        link.symlink_to(f"{up}blobs/{blob.name}")
    write(folder / "refs/main", commit)
    return folder / "snapshots" / commit


def share_hub(snapshot: Path) -> dict[str, Path]:
    """Lays the files of a snapshot out as the client does with Xet: in the cache's own folder of blobs, by a hash, so
    that repositories share them. By the client's own function; skips where it has none. Returns name -> shared file."""
    shared = pytest.importorskip(
        "huggingface_hub.utils._shared_blobs", reason="this huggingface-hub has no blobs that repositories share"
    )
    cache, found = snapshot.parents[2], {}
    for link in sorted(path for path in snapshot.rglob("*") if path.is_symlink()):
        blob = snapshot.parents[1] / "blobs" / Path(link.readlink()).name
        xet_hash = hashlib.sha256(blob.name.encode()).hexdigest()  # any hash of the content
        if not blob.is_symlink():
            told = {"xet_hash": xet_hash, "cache_dir": str(cache), "expected_size": blob.stat().st_size}
            published = shared.publish_blob_to_shared_store(blob_path=str(blob), **told)
            assert published, f"the client did not share {blob}"
        found[str(link.relative_to(snapshot))] = shared.shared_blob_path(cache, xet_hash)
    return found


def put_lmstudio(home: Path, name: str, data: bytes) -> Path:
    """`name`: publisher/repository/file."""
    return write(home / ".lmstudio/models" / name, data)


def put_ollama(
    home: Path,
    name: str,
    data: bytes,
    *,
    host: str = "registry.ollama.ai/library",
    extra: tuple[str, ...] = ("template",),
) -> Path:
    """`name`: name:tag. Returns the blob."""
    root = home / ".ollama/models"
    digest = hashlib.sha256(data).hexdigest()
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(data)}]
    layers += [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{'0' * 64}", "size": 1}
        for kind in extra
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "layers": layers,
    }
    write(root / "manifests" / host / name.replace(":", "/"), json.dumps(manifest))
    return write(root / "blobs" / f"sha256-{digest}", data)


def put_llamacpp(home: Path, repo: str, file: str, data: bytes) -> Path:
    owner, _, name = repo.partition("/")
    folder = home / ".cache/llama.cpp"
    write(folder / f"manifest={owner}={name}=latest.json", "{}")
    return write(folder / f"{owner}_{name}_{file.replace('/', '_')}", data)


def put_own(home: Path, name: str, data: bytes, *, file: str = "model.gguf") -> Path:
    digest = hashlib.sha256(data).hexdigest()
    folder = home / ".cache/octavo/models" / f"{name}-{digest[:12]}"
    write(folder / "lock", "")
    return write(folder / file, data)


def snapshot_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below with its size and time: equal before and after means that nothing was written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        found[str(path.relative_to(folder))] = (facts.st_size, facts.st_mtime_ns)
    return found
