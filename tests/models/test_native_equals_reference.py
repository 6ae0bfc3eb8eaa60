"""The native Executable and the reference run one spec over one batch: same numbers to rounding, same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.program.buffers import BufferStore
from octavo.program.interpret import ReferenceExecutable, load_weights
from tests.models.harness import TinyCheckpoint, lowered, native_backend
from tests.tiny import VOCAB, write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")

CASES: list[tuple[str, dict[str, Any], float]] = [
    ("llama", {"dtype": "float32"}, 1e-5),
    ("llama-odd", {"dtype": "float32"}, 1e-5),
    ("qwen2-tied", {"dtype": "float32"}, 1e-5),
    ("llama-llama3", {"dtype": "float32", "kv_dtype": "bf16"}, 2e-3),
    ("llama-llama3", {"dtype": "float32", "kv_dtype": "int8"}, 2e-3),
    ("llama-odd", {"dtype": "float32", "kv_dtype": "int8"}, 2e-3),
    ("llama-bf16", {"dtype": "auto"}, 3e-2),
    ("mistral", {"dtype": "bfloat16"}, 3e-2),
    ("qwen2", {"dtype": "auto", "quantization": "int8"}, 3e-2),
    ("qwen2", {"dtype": "auto", "quantization": "int8", "kv_dtype": "f32"}, 1e-3),
    ("llama-odd", {"dtype": "auto", "quantization": "int8", "kv_dtype": "f32"}, 1e-3),
    ("qwen2-tied", {"dtype": "auto", "quantization": "int4", "kv_dtype": "f32"}, 1e-3),
    ("mistral", {"dtype": "auto", "quantization": "int4", "kv_dtype": "f32"}, 1e-3),
]
"""Variant, wishes, root of a row's mean squared difference over the logits' spread.

Below float32 a rounding may fall either way: one K that does costs a few 1e-3 of its attention, and q8 codes behind it
follow. With K and V in float32 the integer formats agree as closely as float32 itself, unless a code sits on a tie: the
rows behind it are then off by up to TIE, and only those. A wrong kernel is wrong in every row.
"""
TIE = 3e-2


def step(backend: Any, counts: list[int], starts: list[int], rows: list[int]) -> None:
    """One step of len(counts) sequences; sequence b lives in slot b + 1."""
    for b, (count, start, wanted) in enumerate(zip(counts, starts, rows, strict=True)):
        values = {"slot": b + 1, "count": count, "start": start, "kv_len": start + count, "rows": wanted, "skip": 0}
        for name, value in values.items():
            backend.inputs[name][b] = value
    backend.forward(len(counts))
    backend.sample(len(counts))


@pytest.mark.parametrize(("variant", "wishes", "worst"), CASES)
def test_same_numbers(tmp_path: Path, variant: str, wishes: dict[str, Any], worst: float) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, variant, tokenizer=False))
    spec = lowered(checkpoint, backend="native", **wishes)
    blocks = 3 * spec.limits.max_blocks + 1
    backends = [
        native_backend(spec, checkpoint, num_blocks=blocks),
        ReferenceExecutable(spec, load_weights(spec, checkpoint.tensors), num_blocks=blocks),
    ]
    arena = backends[0]._activations.view(0, spec.arena_bytes)
    stores = [BufferStore(arena, spec.buffers), BufferStore(backends[1].arena, spec.buffers)]
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCAB, (4, 256), dtype=np.int32)
    table = rng.permutation(np.arange(1, blocks)).reshape(3, -1).astype(np.int32)
    for backend in backends:
        backend.tokens[:] = tokens
        backend.inputs["table"][0][:3] = table
        backend.columns["temperature"][:] = 0
    steps = [
        ([20, 1, 33], [0, 0, 0], [0, 1, 2]),
        ([17, 1, 1], [20, 1, 33], [17, 1, 1]),
        ([1, 1, 1], [37, 2, 34], [1, 1, 1]),
    ]
    for counts, starts, rows in steps:
        for backend in backends:
            step(backend, counts, starts, rows)
        got, want = (store.numbers(spec.logits, sum(rows)).copy() for store in stores)
        off = np.sqrt(((got - want) ** 2).mean(axis=1)) / want.std()
        assert off.min() < worst and off.max() < max(worst, TIE), off
        top2 = np.sort(want, axis=1)[:, -2:]
        clear = top2[:, 1] - top2[:, 0] > 10 * np.maximum(worst, off) * want.std()
        assert (backends[0].sampled[: sum(rows)][clear] == backends[1].sampled[: sum(rows)][clear]).all()
        assert backends[0].finite[: sum(rows)].all()
        backends[0].tokens[:] = backends[1].tokens  # a near-tie must not send them apart
    backends[0].close()


def test_same_samples(tmp_path: Path) -> None:
    """Float32 logits that differ in the last bits, every stage of sampling on: the same tokens and logprobs."""
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama-tied", tokenizer=False))
    spec = lowered(checkpoint, backend="native")
    blocks = spec.limits.max_blocks + 1
    backends = [
        native_backend(spec, checkpoint, num_blocks=blocks),
        ReferenceExecutable(spec, load_weights(spec, checkpoint.tensors), num_blocks=blocks),
    ]
    rng = np.random.default_rng(2)
    ids = rng.integers(0, VOCAB, 64, dtype=np.int32)
    table = np.arange(1, blocks, dtype=np.int32)
    stages: list[dict[str, float]] = [
        {"temperature": 0.0, "repetition": 1.3},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 5.0, "top_p": 0.8},
        {"temperature": 3.0, "min_p": 0.05},
        {"temperature": 8.0, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 4.0, "presence": 1.5, "frequency": 0.5, "repetition": 1.2, "num_prompt": 10},
        {"temperature": 2.0, "min_tokens": 100, "num_prompt": 5},
    ]
    neutral = {name: column[1].item() for name, column in backends[1].columns.items()}
    different = 0
    for number, stage in enumerate(stages):
        for backend in backends:
            backend.tokens[1, :64] = ids
            backend.inputs["table"][0][0] = table
            for name, value in {**neutral, **stage, "seed": 1000 + number}.items():
                backend.columns[name][1] = value
            backend.set_bias(1, np.asarray([3, 9], np.int32), np.asarray([2.0, -100.0], np.float32))
            backend.set_stops(1, np.asarray([0, 5], np.int32))
            step(backend, [64], [0], [64])
        different += int((backends[0].sampled[:64] != backends[1].sampled[:64]).sum())
        for row in (0, 17, 63):
            got, want = (backend.logprobs(row, 7, 5) for backend in backends)
            assert got[0] == pytest.approx(want[0], abs=1e-4)
            assert got[1] == want[1]
            assert list(got[2]) == list(want[2])
            assert list(got[3]) == pytest.approx(list(want[3]), abs=1e-4)
    assert different <= 2  # of 512 draws: a draw may fall on a border
    backends[0].close()


@pytest.mark.parametrize("format", ["f32", "bf16", "int8", "int4m"])
@pytest.mark.parametrize(("n", "k"), [(20, 100), (16, 32), (33, 576)])
def test_packed_weights_hold_the_references_numbers(format: str, n: int, k: int) -> None:
    from octavo.kernels import native as kernels
    from octavo.kernels.reference.weights import dense_weight
    from octavo.quant.table import FORMATS

    w = (np.random.default_rng(n).standard_normal((n, k)) * 0.1).astype(np.float32)
    raw = np.frombuffer(w.tobytes(), np.uint8)
    size = kernels.packed_bytes(format, n, k)
    assert size == FORMATS[format].storage_bytes(n, k)
    packed = kernels.Arena(size).view(0, size)
    kernels.pack(format, "f32", n, k, raw, packed, col0=0, n_total=n, threads=1)
    out = np.empty((n, k), np.float32)
    kernels.unpack_rows(format, n, k, packed, np.arange(n, dtype=np.int32), out)
    want = dense_weight(format, "f32", raw, n, k)
    if format in ("f32", "bf16"):
        assert (out == want).all()
    else:  # a code may fall either way at a tie of rounding
        assert (out != want).mean() < 0.01
        assert np.abs(out - want).max() < 0.05
