"""Keys with loud biases in an int8 cache, the whole way from a checkpoint to logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as change

from octavo.program.interpret import load_weights
from octavo.program.ir import Attend, KVWrite
from tests.models.harness import MemoryTensor, Sequence1, TinyCheckpoint, all_logits, lowered, native_backend
from tests.tiny import VOCAB, write_tiny

LOUD = {3: 150.0, 20: -90.0}
"""Dims of a key of 32."""


@pytest.fixture
def loud(tmp_path: Path) -> TinyCheckpoint:
    """Every key is lifted alike; queries look elsewhere, or nothing but these dims would decide."""
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "qwen2-tied", tokenizer=False))
    tensors = dict(checkpoint.tensors)
    for name, tensor in checkpoint.tensors.items():
        values = tensor.values.copy()
        if name.endswith("k_proj.bias"):
            values[[*LOUD]] = [*LOUD.values()]
        elif ".q_proj." in name:
            heads = values.reshape(-1, 32, *values.shape[1:])
            heads[:, [d + turn for d in (3, 4) for turn in (0, 16)]] = 0  # rope turns d and d + 16 together
        tensors[name] = MemoryTensor(tensor.source, values)
    return replace(checkpoint, tensors=tensors)


def test_both_ops_have_it_and_only_for_codes(loud: TinyCheckpoint) -> None:
    for kv_dtype, has in (("int8", True), ("bf16", False)):
        spec = lowered(loud, dtype="auto", backend="native", kv_dtype=kv_dtype)
        writes = [op.balance for op in spec.ops if isinstance(op, KVWrite)]
        reads = [op.balance for op in spec.ops if isinstance(op, Attend)]
        assert writes == reads and all((name is not None) == has for name in writes)
        assert has == any(w.weight.balance is not None for w in spec.weights)


def test_logits_stay_those_of_exact_keys(loud: TinyCheckpoint) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    ids = np.random.default_rng(0).integers(0, VOCAB, 48).tolist()
    exact = lowered(loud)
    logits = all_logits(exact, load_weights(exact, loud.tensors), ids, chunk=48).astype(np.float64)
    want = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    off = {}
    for balanced in (True, False):
        spec = lowered(loud, backend="native", kv_dtype="int8")
        if not balanced:
            plain = (change(op, balance=None) if isinstance(op, KVWrite | Attend) else op for op in spec.ops)
            spec = change(spec, ops=tuple(plain))
        backend = native_backend(spec, loud, num_blocks=24)
        Sequence1(backend, num_blocks=24).compute(ids, rows=len(ids), chunk=48)
        got = [backend.logprobs(row, row % VOCAB, 0)[0] for row in range(len(ids))]
        off[balanced] = max(abs(x - want[row, row % VOCAB]) for row, x in enumerate(got))
        backend.close()
    assert off[True] < off[False] / 4, off
