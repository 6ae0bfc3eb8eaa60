"""Every tiny variant on the reference against a dense float64 forward that shares no code with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.program.interpret import load_weights
from tests.models.harness import TinyCheckpoint, all_logits, lowered
from tests.tiny import VARIANTS, VOCAB, dense_logits, write_tiny

IDS = [int(i) for i in np.random.default_rng(7).integers(0, VOCAB, 75)]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_equals_dense(tmp_path: Path, variant: str, backend: str) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, variant, tokenizer=False))
    spec = lowered(checkpoint, backend=backend)
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=31)
    want = dense_logits(tmp_path, IDS)
    assert np.abs(got - want).max() < 2e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    ("variant", "wishes", "worst"),
    [
        ("llama-bf16", {"dtype": "auto"}, 0.05),
        ("llama-f16", {"dtype": "auto", "kv_dtype": "f32"}, 2e-4),
        ("llama", {"dtype": "bfloat16"}, 0.05),
        ("qwen2", {"dtype": "auto", "quantization": "int8"}, 0.08),
        ("llama-odd", {"dtype": "auto", "quantization": "int8"}, 0.08),
        ("qwen2-tied", {"dtype": "auto", "quantization": "int4"}, 0.5),
    ],
)
def test_formats_stay_near(tmp_path: Path, variant: str, wishes: dict[str, Any], worst: float) -> None:
    """Lower precision moves logits by no more than its share of their spread."""
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, variant, tokenizer=False))
    spec = lowered(checkpoint, backend="native", **wishes)
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=64)
    want = dense_logits(tmp_path, IDS)
    assert np.sqrt(((got - want) ** 2).mean()) < worst * want.std()


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_and_blocks_change_nothing(tmp_path: Path, chunk: int) -> None:
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    spec = lowered(checkpoint, block_size=8)
    weights = load_weights(spec, checkpoint.tensors)
    whole = all_logits(spec, weights, IDS[:40], chunk=40)
    got = all_logits(spec, weights, IDS[:40], chunk=chunk, seed=chunk)
    assert np.abs(got - whole).max() < 1e-4


def test_llama3_rope_moves_logits(tmp_path: Path) -> None:
    """The scaled table must matter, or the variant above proves nothing."""
    scaled = dense_logits(write_tiny(tmp_path / "a", "llama-llama3", tokenizer=False), IDS)
    plain = dense_logits(write_tiny(tmp_path / "b", "llama", tokenizer=False), IDS)
    assert np.abs(scaled - plain).max() > 0.01
