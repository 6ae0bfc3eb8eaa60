"""A model on disk, whatever its file format: configuration and tensors under Hugging Face names."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ModelError
from octavo.weights.tensors import SOURCES as SOURCES
from octavo.weights.tensors import Checkpoint as Checkpoint
from octavo.weights.tensors import Known as Known
from octavo.weights.tensors import Tensor as Tensor


def open_checkpoint(path: str | Path, *, known: Known | None = None) -> Checkpoint:
    """Opens a .gguf file or a Hugging Face directory; reads headers (and tied.py's two tensors, where both are
    stored).

    `known` is asked about a directory's config.json before its keys and tensors are judged: those of an architecture
    that nobody knows say nothing. (A GGUF file's names are in gguf_architectures.py.)

    Raises ModelError (nothing there, unknown architecture, unsupported tensor type) and FileFormatError (damaged file).
    """
    from octavo.weights.gguf_parts import is_later_part

    path = Path(path)
    if path.is_dir():
        if (path / "config.json").exists():
            from octavo.weights.directory import open_directory

            return open_directory(path, known=known)
        files = sorted(f for f in path.glob("*.gguf") if not is_later_part(f.name))
        if len(files) != 1:
            got = ", ".join(f.name for f in files) or "neither"
            raise ModelError(f"{path}: got {got}, allowed: a directory with a config.json or exactly one .gguf file")
        path = files[0]
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if path.suffix in (".bin", ".pt", ".pth"):
        raise ModelError(f"{path}: pickled weights can run code and are not read; convert the model to safetensors")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: one safetensors file is not a model; give its directory (with config.json)")
    from octavo.weights.gguf_names import open_gguf

    return open_gguf(path)
