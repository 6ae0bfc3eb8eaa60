"""Directories of AWQ, GPTQ, compressed-tensors and FP8: logits of the float model that their codes mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.program.interpret import load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import all_logits, lowered, served_logits
from tests.quantized_maker import KINDS, write_quantized
from tests.tiny import VOCAB, dense_logits

IDS = [int(i) for i in np.random.default_rng(11).integers(0, VOCAB, 40)]
FAMILIES = {"llama": 0.06, "qwen2": 0.06, "phi3": 0.06, "mixtral": 0.2, "qwen3-moe": 0.2}
"""A key of tests.tiny's VARIANTS -> worst error as served, root of the mean square over the logits' spread (0.052
measured). In the mixtures (0.17) a rounding near a tie sends a token to another expert."""
ROUNDED = ("gptq-act-order", "gptq-8", "gptq-8-act-order")
"""Kinds that no integer format holds: 8 bits in groups of 32, or bfloat16."""


def rms(off: NDArray[np.float64]) -> float:
    return float(np.sqrt((off**2).mean()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(tmp_path: Path, kind: str, family: str) -> None:
    """In float32 the dequantised model; natively as stored, with activations in 8 bits where codes are integers."""
    made = write_quantized(tmp_path, kind, family=family)
    want = dense_logits(made.dense, IDS)
    checkpoint = open_checkpoint(made.directory)
    spec = lowered(checkpoint, dtype="float32")
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=17)
    if kind in ROUNDED:
        assert rms(got - want) < FAMILIES[family] * want.std()
    else:
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
    assert rms(served_logits(checkpoint, IDS) - want) < FAMILIES[family] * want.std()
