"""A model's files, opened: the one way that serving, explaining, packing and measuring take."""

from __future__ import annotations

from pathlib import Path

from octavo.models.registry import architecture
from octavo.weights.checkpoint import Checkpoint, open_checkpoint


def open_model(path: str | Path) -> Checkpoint:
    """`open_checkpoint` that knows the architectures of models/registry.py. Reads no weights (but a head stored
    beside the embedding that it is said to be); loads NumPy only for a directory with a quantization_config.

    Raises ModelError (an unknown architecture before anything else of the files is judged) and FileFormatError.
    """
    return open_checkpoint(path, known=architecture)
