"""Directories of AWQ, GPTQ, compressed-tensors and FP8: logits of the float model that their codes mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.program.buffers import BufferStore
from octavo.program.interpret import load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import Sequence1, all_logits, lowered, native_backend
from tests.quantized_maker import KINDS, write_quantized
from tests.tiny import VOCAB, dense_logits

IDS = [int(i) for i in np.random.default_rng(11).integers(0, VOCAB, 40)]

ROUNDED = ("gptq-act-order", "gptq-8", "gptq-8-act-order")
"""Kinds that no integer format holds: 8 bits in groups of 32, or bfloat16."""


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_the_dequantised_model(tmp_path: Path, kind: str) -> None:
    made = write_quantized(tmp_path, kind)
    checkpoint = open_checkpoint(made.directory)
    spec = lowered(checkpoint, dtype="float32")
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=17)
    want = dense_logits(made.dense, IDS)
    worst = 0.06 if kind in ROUNDED else 2e-4
    assert np.abs(got - want).max() < worst * np.abs(want).max()


@pytest.mark.parametrize(
    "kind", ["awq", "gptq", "gptq-act-order", "ct-w4a16", "ct-w4a16-zeros", "ct-w8a8", "fp8-block", "fbgemm-fp8"]
)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_served_natively(tmp_path: Path, kind: str, family: str) -> None:
    """As stored, with activations in 8 bits where codes are integers."""
    made = write_quantized(tmp_path, kind, family=family)
    checkpoint = open_checkpoint(made.directory)
    spec = lowered(checkpoint, dtype="auto", backend="native")
    backend = native_backend(spec, checkpoint, num_blocks=spec.limits.max_blocks + 3)
    try:
        Sequence1(backend, num_blocks=spec.limits.max_blocks + 3).compute(IDS, rows=len(IDS), chunk=len(IDS))
        store = BufferStore(backend._activations.view(0, spec.arena_bytes), spec.buffers)
        got = store.numbers(spec.logits, len(IDS)).copy()
    finally:
        backend.close()
    want = dense_logits(made.dense, IDS)
    assert np.sqrt(((got - want) ** 2).mean()) < 0.05 * want.std()
