"""A native backend without some kernel: the reference fills the gap in the native arena, and the answer is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.kernels import BACKENDS, OPS
from octavo.models.registry import build_program
from octavo.program.buffers import BufferStore
from octavo.program.executable import ExecutableSpec, Limits
from octavo.program.formats import choose_formats
from octavo.program.lower import lower
from octavo.program.ops import Host
from octavo.quant.table import Wishes
from tests.models.harness import Sequence1, TinyCheckpoint, native_backend
from tests.tiny import VOCAB, write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")

IDS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 40)]


@pytest.mark.parametrize("missing", ["act", "norm", "rope", "linear", "embed", "gather", "head", "act norm linear"])
def test_the_reference_fills_in_on_the_native_backend(tmp_path: Path, missing: str) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "qwen2", tokenizer=False))
    whole, cut = _spec(checkpoint, ""), _spec(checkpoint, missing)
    assert {op.op.kind for op in cut.ops if isinstance(op, Host)} == set(missing.split())
    want, got = _logits(whole, checkpoint), _logits(cut, checkpoint)
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() < 2e-4 * np.abs(want).max()


def _spec(checkpoint: TinyCheckpoint, missing: str) -> ExecutableSpec:
    program = build_program(checkpoint.config)
    formats = choose_formats(program, checkpoint.tensors, Wishes(dtype="float32"))
    limits = Limits(max_tokens=32, max_rows=32, max_seqs=2, max_len=64, block_size=16)
    table = replace(BACKENDS["native"], kinds=frozenset(OPS) - set(missing.split()))
    return lower(program, formats.by_weight, limits, table, kv_dtype="f32")


def _logits(spec: ExecutableSpec, checkpoint: TinyCheckpoint) -> NDArray[np.float32]:
    """Of the last 8 positions, the prompt in two chunks."""
    backend = native_backend(spec, checkpoint, num_blocks=8)
    try:
        Sequence1(backend, num_blocks=8).compute(IDS, rows=8, chunk=32)
        store = BufferStore(backend._activations.view(0, spec.arena_bytes), spec.buffers)
        return store.numbers(spec.logits, 8).copy()
    finally:
        backend.close()
