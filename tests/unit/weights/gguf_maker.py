"""Writes GGUF files for tests, right ones and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type and value, by the Python type."""
    if isinstance(item, bool):
        return struct.pack("<IB", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", U32, item) if item >= 0 else struct.pack("<Ii", I32, item)
    if isinstance(item, float):
        return struct.pack("<If", F32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + text(item)
    if isinstance(item, Sequence):
        if item and isinstance(item[0], str):
            return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(map(text, item))
        return struct.pack("<IIQ", ARRAY, I32, len(item)) + struct.pack(f"<{len(item)}i", *item)
    raise TypeError(item)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, Sequence[int], int, bytes]] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    offsets: Sequence[int] | None = None,
) -> bytes:
    """`tensors`: (name, shape outermost first, GGML type id, data). `offsets` overrides the right ones."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    data = b""
    for index, (name, shape, kind, raw) in enumerate(tensors):
        data += b"\0" * (-len(data) % alignment)
        offset = len(data) if offsets is None else offsets[index]
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, offset)
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96,
    "llama.context_length": 512,
    "llama.rope.freq_base": 5000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|im_end|>", "a", "b", "ab", "<|endoftext|>"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.bos_token_id": 4,
}


def llama_tensors(rows: Mapping[str, bytes] | None = None) -> list[tuple[str, Sequence[int], int, bytes]]:
    """The f32 tensors of a one-layer model of hidden size 64; `rows` overrides some."""
    shapes = {
        "token_embd.weight": (5, 64),
        "output_norm.weight": (64,),
        "blk.0.attn_norm.weight": (64,),
        "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64),
        "blk.0.attn_v.weight": (32, 64),
        "blk.0.attn_output.weight": (64, 64),
        "blk.0.ffn_norm.weight": (64,),
        "blk.0.ffn_gate.weight": (96, 64),
        "blk.0.ffn_up.weight": (96, 64),
        "blk.0.ffn_down.weight": (64, 96),
    }
    result: list[tuple[str, Sequence[int], int, bytes]] = []
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        raw = struct.pack(f"<{count}f", *(i % 251 for i in range(count)))
        result.append((name, shape, 0, (rows or {}).get(name, raw)))
    return result


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
