"""Files of random weights: numbers as spread as a model's, in a file that opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="files of random weights are written by the package gguf")

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from bench.random_gguf import FILE_TYPES, SHAPES, SPREAD, TYPES, Shape, unfit, write
from octavo.weights.checkpoint import open_checkpoint
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes

SMALL = Shape("qwen2", 2, 256, 512, 4, 2, 64, 5, biases=True, head_norms=False)


@pytest.mark.parametrize("kind", TYPES)
def test_numbers_are_spread_as_weights(kind: str) -> None:
    code, _, blocks = TYPES[kind]
    values = dequantize(blocks(np.random.default_rng(1), 2000), code)
    assert abs(values.std() / SPREAD - 1) < 0.03
    assert abs(values.mean()) < 0.15 * SPREAD, "codes of q4_0 are -8 to 7"


@pytest.mark.parametrize("shape", [SMALL, Shape("qwen3", 1, 256, 256, 2, 1, 128, 5, biases=False, head_norms=True)])
@pytest.mark.parametrize("kind", TYPES)
def test_a_file_opens_with_its_shape_and_vocabulary(kind: str, shape: Shape, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary.gguf"
    vocabulary.write_bytes(gguf_bytes(LLAMA))
    write(tmp_path / "made.gguf", shape, kind, vocabulary)
    checkpoint = open_checkpoint(tmp_path / "made.gguf")
    config = checkpoint.config
    assert [config[k] for k in ("hidden_size", "num_hidden_layers", "head_dim")] == [256, shape.layers, shape.head]
    assert {t.source for t in checkpoint.tensors.values()} == {"q8_0", kind, "f32"}
    told = GGUFReader(tmp_path / "made.gguf").fields["general.file_type"].contents()
    assert told == FILE_TYPES[kind], "OpenVINO opens no file without it"


def test_shapes_and_types() -> None:
    """Rows are whole blocks, and what does not fit is told before a file is begun."""
    fits = {(name, kind): unfit(shape, kind) for name, shape in SHAPES.items() for kind in TYPES}
    wrong = {pair for pair, refused in fits.items() if refused}
    assert wrong == {("qwen2.5-0.5b", "q4_k")}
    assert fits["qwen2.5-0.5b", "q4_k"] == "rows: got 896 numbers, allowed for q4_k: a multiple of 256"


def test_a_vocabulary_that_is_too_large(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocabulary.gguf"
    vocabulary.write_bytes(gguf_bytes(LLAMA))
    with pytest.raises(SystemExit, match="got 5 tokens, allowed: at most the shape's 4"):
        write(tmp_path / "made.gguf", replace(SMALL, vocabulary=4), "q4_0", vocabulary)
