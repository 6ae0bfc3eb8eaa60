"""A GGUF file of a real model's shape with random weights: for speed where the model itself is not to be had.

    python -m bench.random_gguf OUT.gguf --shape qwen3-0.6b --type q4_0 --vocabulary MODEL.gguf

`--vocabulary`: a GGUF file whose tokenizer is taken, of the shape's vocabulary. Weights have a standard deviation of
0.02, norms are 1, biases 0; the vocabulary projection is tied and Q8_0, as small models' files have it in about. Every
engine that reads GGUF reads it: what it says is noise, how fast it says it is not. Needs the package gguf (`.[dev]`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType
from numpy.typing import NDArray

SPREAD = 0.02
"""Standard deviation of a weight."""
CONTEXT = 32768


@dataclass(frozen=True, slots=True)
class Shape:
    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    biases: bool
    """Of q, k and v."""
    head_norms: bool
    """Of q and k."""
    base: float = 1e6
    eps: float = 1e-6


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, biases=False, head_norms=True),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, biases=True, head_norms=False),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, biases=True, head_norms=False),
}
"""From the models' config.json."""


def half(x: float) -> NDArray[np.uint8]:
    return np.frombuffer(np.float16(x).tobytes(), np.uint8)


def q4_0(rng: np.random.Generator, blocks: int) -> NDArray[np.uint8]:
    """f16 scale, 32 codes 0 to 15 less 8: uniform ones have a standard deviation of 4.6."""
    out = rng.integers(0, 256, (blocks, 18), np.uint8)
    out[:, :2] = half(SPREAD / 4.6)
    return out


def q8_0(rng: np.random.Generator, blocks: int) -> NDArray[np.uint8]:
    """f16 scale, 32 codes -128 to 127."""
    out = rng.integers(0, 256, (blocks, 34), np.uint8)
    out[:, :2] = half(SPREAD / 74)
    return out


def q4_k(rng: np.random.Generator, blocks: int) -> NDArray[np.uint8]:
    """f16 d and dmin, eight 6-bit scales and minima (all 32), 256 codes 0 to 15."""
    out = rng.integers(0, 256, (blocks, 144), np.uint8)
    d = SPREAD / (4.6 * 32)
    out[:, :2], out[:, 2:4] = half(d), half(7.5 * d)
    out[:, 4:12], out[:, 12:16] = 32 | 2 << 6, 0
    return out


TYPES: dict[str, tuple[Kind, int, Callable[[np.random.Generator, int], NDArray[np.uint8]]]] = {
    "q4_0": (Kind.Q4_0, 32, q4_0),
    "q8_0": (Kind.Q8_0, 32, q8_0),
    "q4_k": (Kind.Q4_K, 256, q4_k),
}
"""Name -> GGUF's, numbers of a block, random blocks."""

FILE_TYPES = {
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_k": LlamaFileType.MOSTLY_Q4_K_M,
}
"""What the file as a whole says it is: OpenVINO opens none that does not."""


def matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """(name, rows, columns) of every weight of the layers."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    for layer in range(shape.layers):
        for name, rows, columns in (
            ("attn_q", queries, shape.hidden),
            ("attn_k", keys, shape.hidden),
            ("attn_v", keys, shape.hidden),
            ("attn_output", shape.hidden, queries),
            ("ffn_gate", shape.inner, shape.hidden),
            ("ffn_up", shape.inner, shape.hidden),
            ("ffn_down", shape.hidden, shape.inner),
        ):
            yield f"blk.{layer}.{name}.weight", rows, columns


def vectors(shape: Shape) -> Iterator[tuple[str, int, float]]:
    """(name, numbers, each of them)."""
    yield "output_norm.weight", shape.hidden, 1.0
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm.weight", shape.hidden, 1.0
        yield f"blk.{layer}.ffn_norm.weight", shape.hidden, 1.0
        if shape.head_norms:
            yield f"blk.{layer}.attn_q_norm.weight", shape.head, 1.0
            yield f"blk.{layer}.attn_k_norm.weight", shape.head, 1.0
        if shape.biases:
            yield f"blk.{layer}.attn_q.bias", shape.heads * shape.head, 0.0
            yield f"blk.{layer}.attn_k.bias", shape.kv_heads * shape.head, 0.0
            yield f"blk.{layer}.attn_v.bias", shape.kv_heads * shape.head, 0.0


def unfit(shape: Shape, kind: str) -> str:
    """Why this shape cannot be written in this type, "" where it can: rows are whole blocks."""
    size = TYPES[kind][1]
    wrong = {columns for _, _, columns in matrices(shape) if columns % size}
    return f"rows: got {min(wrong)} numbers, allowed for {kind}: a multiple of {size}" if wrong else ""


def write(out: Path, shape: Shape, kind: str, vocabulary: Path) -> None:
    writer = gguf.GGUFWriter(out, shape.architecture)
    writer.add_name(out.stem)
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_freq_base(shape.base)
    writer.add_layer_norm_rms_eps(shape.eps)
    fields = gguf.GGUFReader(vocabulary).fields
    tokens = len(fields["tokenizer.ggml.tokens"].data)
    if tokens > shape.vocabulary:
        raise SystemExit(f"{vocabulary}: got {tokens} tokens, allowed: at most the shape's {shape.vocabulary}")
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
    rng = np.random.default_rng(0)

    def add(name: str, kind: str, rows: int, columns: int) -> None:
        code, size, blocks = TYPES[kind]
        writer.add_tensor(name, blocks(rng, rows * columns // size).reshape(rows, -1), raw_dtype=code)

    add("token_embd.weight", "q8_0", shape.vocabulary, shape.hidden)
    for name, rows, columns in matrices(shape):
        add(name, kind, rows, columns)
    for name, count, value in vectors(shape):
        writer.add_tensor(name, np.full(count, value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--type", required=True, choices=TYPES)
    parser.add_argument("--vocabulary", required=True, type=Path, help="a GGUF file with the tokenizer")
    args = parser.parse_args()
    if refused := unfit(SHAPES[args.shape], args.type):
        parser.error(refused)
    write(args.out, SHAPES[args.shape], args.type, args.vocabulary)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
