"""Mutated files: the readers answer with a typed error or a reading that is true, in bounded time and memory (S19)."""

from __future__ import annotations

import json
import math
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.kernels.reference.blocks import BLOCKS, blocks
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.gguf import GGML_TYPES, GGUFArray, GGUFFile
from octavo.weights.safetensors import SafetensorsFile
from tests.unit.kernels.test_blocks import GGUF
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors

CASES = 600
NASTY = [0, 1, 7, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


def mutate(data: bytes, rng: random.Random, *, within: int) -> bytes:
    """One to four changes in the first `within` bytes: numbers, bits, cuts, repeats."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(within, len(raw)) or 1)
        match rng.randrange(6):
            case 0:
                raw[at : at + 8] = struct.pack("<Q", rng.choice(NASTY))
            case 1:
                raw[at : at + 4] = struct.pack("<I", rng.choice(NASTY) & 0xFFFFFFFF)
            case 2:
                raw[at] ^= 1 << rng.randrange(8)
            case 3:
                raw[at] = rng.randrange(256)
            case 4:
                del raw[at : at + rng.choice((1, 4, 8, 64))]
            case 5:
                raw[at:at] = raw[at : at + rng.choice((1, 4, 8, 64))]
    return bytes(raw[: rng.randrange(len(raw))] if rng.random() < 0.1 else raw)


def use_gguf(path: Path) -> None:
    file = GGUFFile(path)
    for value in file.metadata.values():
        if isinstance(value, GGUFArray):
            assert len(value.tolist()) == len(value)
    spans = sorted((t.offset, t.offset + t.nbytes) for t in file.tensors.values())
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(len(t.data) == t.nbytes for t in file.tensors.values())
    checkpoint = open_checkpoint(path)
    for tensor in checkpoint.tensors.values():
        assert tensor.read().size == tensor.nbytes
    Tokenizer.from_spec(checkpoint.tokenizer_spec).encode("ab ba")


def use_quantised(path: Path) -> None:
    """Every tensor that is one of our sources becomes numbers, as many as its shape says."""
    for tensor in GGUFFile(path).tensors.values():
        source, columns = tensor.type.lower(), tensor.shape[-1]
        if source in BLOCKS:
            count = math.prod(tensor.shape)
            data = np.frombuffer(tensor.data, np.uint8)
            assert blocks(source, data, count // columns, columns).dense().size == count


def use_safetensors(path: Path) -> None:
    file = SafetensorsFile(path)
    assert 8 + len(file.header) + sum(len(t.data) for t in file.tensors.values()) == file.size


def check(use: Callable[[Path], None], path: Path, data: bytes) -> bool:
    """Whether the file was accepted. Anything but ModelError is a bug."""
    path.write_bytes(data)
    start = time.perf_counter()
    try:
        use(path)
        accepted = True
    except ModelError:
        accepted = False
    assert time.perf_counter() - start < 5, "time is not bounded"
    return accepted


def fuzz(use: Callable[[Path], None], path: Path, whole: bytes, *, within: int, seed: int) -> None:
    rng = random.Random(seed)
    assert check(use, path, whole), "the seed file itself is good"
    accepted = 0
    tracemalloc.start()
    try:
        for case in range(CASES):
            mutant = mutate(whole, rng, within=within)
            try:
                accepted += check(use, path, mutant)
            except Exception as error:
                raise AssertionError(f"case {case} of seed {seed}: {type(error).__name__}: {error}") from error
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert accepted < CASES, "no mutant is refused: the mutations test nothing"
    assert peak < 64_000_000, f"{peak} bytes for a file of {len(whole)}"


@pytest.mark.parametrize("seed", range(2))
def test_gguf(seed: int, tmp_path: Path) -> None:
    whole = gguf_bytes(LLAMA, llama_tensors())
    header = whole.index(b"blk.0.ffn_down.weight") + 64
    fuzz(use_gguf, tmp_path / "m.gguf", whole, within=header, seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_quantised_gguf(seed: int, tmp_path: Path) -> None:
    kinds = [kind for kind, (name, _, _) in GGML_TYPES.items() if name.lower() in BLOCKS]
    assert {GGML_TYPES[kind][0].lower() for kind in kinds} == set(GGUF), "a source of GGUF files that is not fuzzed"
    raw = random.Random(seed).randbytes(4096)
    tensors = [(f"t{k}", (3, 256), k, raw[: 768 // GGML_TYPES[k][1] * GGML_TYPES[k][2]]) for k in kinds]
    whole = gguf_bytes({"general.architecture": "llama"}, tensors)
    fuzz(use_quantised, tmp_path / "m.gguf", whole, within=whole.index(raw[:64]), seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_safetensors(seed: int, tmp_path: Path) -> None:
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    raw = json.dumps(header).encode()
    whole = struct.pack("<Q", len(raw)) + raw + bytes(range(32))
    fuzz(use_safetensors, tmp_path / "m.safetensors", whole, within=8 + len(raw), seed=seed)


def test_every_field_of_a_gguf_header_with_nasty_numbers(tmp_path: Path) -> None:
    """Not at random: each 4-byte step of the small file's header takes each nasty number once."""
    whole = gguf_bytes({"general.architecture": "llama", "k": ["a", "b"]}, [("t", (2, 32), 3, bytes(40))])
    header = len(whole) - 40
    path = tmp_path / "m.gguf"
    for at in range(0, header, 4):
        for number in NASTY:
            check(use_gguf, path, whole[:at] + struct.pack("<Q", number) + whole[at + 8 :])


def test_every_config_value_with_every_kind(tmp_path: Path) -> None:
    """The directory reader: each key of config.json takes each kind of JSON value."""
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "intermediate_size": 16,
        "vocab_size": 10,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "rope_scaling": None,
        "rope_parameters": None,
        "max_position_embeddings": 64,
        "sliding_window": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "quantization_config": None,
        "tie_word_embeddings": True,
    }
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    for key in config:
        for value in (None, True, -1, 0, 2**70, 1.5, "text", [], [1], ["a", {}], {}, {"a": 1}, {"rope_theta": "x"}):
            (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
            try:
                checkpoint = open_checkpoint(tmp_path)
            except ModelError:
                continue
            assert isinstance(checkpoint.config["rope_theta"], float)
            assert all(type(i) is int for i in checkpoint.config["eos_token_id"])
