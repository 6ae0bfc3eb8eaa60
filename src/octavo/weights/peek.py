"""What a model is, from the first bytes of its files: architecture and format, for lists. Quick and without NumPy.

What cannot be read is answered with a word, never an error: a list is not the place to refuse a model.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from octavo.weights.gguf import STRING
from octavo.weights.tags import tag_of

# fmt: off
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}
# fmt: on
"""general.file_type -> tag."""
UINT32 = 4
MOST = 64 << 20
"""Bytes of a GGUF file that are searched at most: the metadata of vocabularies of half a million words."""
UNKNOWN = "-"


class Look(NamedTuple):
    format: str
    architecture: str


def look(path: Path, *, name: str = "") -> Look:
    """Format ("GGUF Q4_K_M", "safetensors bf16", "safetensors awq") and architecture of a GGUF file or a directory.

    `name`: the file's name where `path` has none that says anything (a blob).
    """
    try:
        return _directory(path) if path.is_dir() else _gguf(path, tag_of(name or path.name))
    except (OSError, struct.error, UnicodeDecodeError, ValueError, msgspec.DecodeError):
        return Look("unreadable", UNKNOWN)


def _directory(path: Path) -> Look:
    config: Any = msgspec.json.decode((path / "config.json").read_bytes())
    if not isinstance(config, dict):
        return Look("unreadable", UNKNOWN)
    quantized = config.get("quantization_config") or config.get("compression_config")
    kind = quantized.get("quant_method") if isinstance(quantized, dict) else None
    kind = kind or config.get("torch_dtype") or config.get("dtype") or UNKNOWN
    short = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(str(kind), str(kind))
    return Look(f"safetensors {short}"[:40], str(config.get("model_type") or UNKNOWN)[:40])


def _gguf(path: Path, tag: str) -> Look:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            return Look("unreadable", UNKNOWN)
        at = _after(data, b"general.architecture", STRING)
        size = struct.unpack_from("<Q", data, at)[0] if at else 0
        architecture = data[at + 8 : at + 8 + size].decode() if 0 < size <= 40 else UNKNOWN
        if not tag and (at := _after(data, b"general.file_type", UINT32)):
            tag = FILE_TYPES.get(struct.unpack_from("<I", data, at)[0], "")
    return Look(f"GGUF {tag}".rstrip(), architecture)


def _after(data: mmap.mmap, key: bytes, kind: int) -> int:
    """Where the value of a metadata entry starts, 0 if there is none. A search and no walk: the vocabulary's strings
    lie between (llama.cpp writes general.file_type behind them), and to walk over them takes a tenth of a second."""
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<I", kind)
    at = data.find(entry, 0, MOST)
    return at + len(entry) if at >= 0 else 0
