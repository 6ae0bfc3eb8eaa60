"""Directories of AWQ, GPTQ, compressed-tensors, FP8 and our own: logits of the float model that their codes mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.program.interpret import load_weights
from octavo.runner.pack_directory import pack_directory
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import all_logits, lowered, served_logits, spread_errors
from tests.oracle.driver import Chunk, Loaded
from tests.quantized_maker import KINDS, write_quantized
from tests.tiny import VOCAB, dense_logits, write_safetensors, write_tiny

IDS = [int(i) for i in np.random.default_rng(11).integers(0, VOCAB, 40)]
FAMILIES = {"llama": 0.08, "qwen2": 0.08, "phi3": 0.08, "mixtral": 0.3, "qwen3-moe": 0.3}
"""A key of tests.tiny's VARIANTS -> worst error as served, root of the mean square over the logits' spread (0.066
measured). In the mixtures (0.26) a rounding near a tie sends a token to another expert."""
ROUNDED = ("gptq-act-order", "gptq-8", "gptq-8-act-order")
"""Kinds that no integer format holds: 8 bits in groups of 32, or bfloat16."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(tmp_path: Path, figures: list[dict[str, Any]], kind: str, family: str) -> None:
    """In float32 the dequantised model; natively as stored, with activations in 8 bits where codes are integers."""
    made = write_quantized(tmp_path, kind, family=family)
    want = dense_logits(made.dense, IDS)
    checkpoint = open_checkpoint(made.directory)
    spec = lowered(checkpoint, dtype="float32")
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=17)
    if kind in ROUNDED:
        spread_errors(got, want, FAMILIES[family])
    else:
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
    errors = spread_errors(served_logits(checkpoint, IDS), want, FAMILIES[family])
    figures.append({"family": family, "source": "directory", "format": kind, **errors})


@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral"])
def test_one_scale_a_token(tmp_path: Path, family: str) -> None:
    """As the scheme says, where that was asked for: the reference's numbers, whatever the schedule and the threads."""
    made = write_quantized(tmp_path, "ct-w8a8", family=family)
    asked = {"dtype": "auto", "quantization": "compressed-tensors"}
    checkpoint = open_checkpoint(made.directory)
    got = served_logits(checkpoint, IDS, **asked)
    spread_errors(got, dense_logits(made.dense, IDS), FAMILIES[family])
    assert (got != served_logits(checkpoint, IDS)).any(), "as without the flag"
    spec = lowered(checkpoint, backend="native", kv_dtype="f32", **asked)
    assert {w.format for w in spec.weights if w.weight.name in made.matrices} == {"int8t"}
    want = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=len(IDS))
    off = np.sqrt(((served_logits(checkpoint, IDS, kv_dtype="f32", **asked) - want) ** 2).mean(axis=1))
    assert np.median(off) <= 1e-3 * want.std()  # a code on a tie costs its row, and in a mixture sends it elsewhere
    for threads in (1, 2):
        loaded = Loaded(made.directory, "native", max_len=64, threads=threads, **asked)
        assert (loaded.chunked(IDS, len(IDS)) == got).all()
        assert (loaded.chunked(IDS, 7, slot=1) == got).all()
        loaded.step(Chunk(2, 0, IDS[:16], 1))
        other, rows = loaded.step(Chunk(3, 0, IDS[::-1], 1), Chunk(2, 16, IDS[16:], len(IDS) - 16))
        assert (rows == got[16:]).all() and len(other) == 1
        loaded.close()


@pytest.mark.parametrize("kind", ["ct-w8a8-f32-scales", "ct-w8a16", "awq"])
def test_one_scale_a_token_is_refused_where_no_scheme_says_it(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write_quantized(tmp_path, kind).directory)
    with pytest.raises(ConfigError, match="got compressed-tensors, allowed: none"):
        lowered(checkpoint, dtype="auto", quantization="compressed-tensors")


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed(tmp_path: Path, figures: list[dict[str, Any]], form: str, family: str) -> None:
    """Our own packed directories: the model with the numbers that the kernels read."""
    plain, packed, dense = write_tiny(tmp_path / "plain", family), tmp_path / "packed", tmp_path / "dense"
    packed.mkdir()
    pack_directory(plain, packed, quantization=form)
    loaded = Loaded(plain, "native", max_len=64, dtype="auto", quantization=form)
    write_tiny(dense, family, tokenizer=False)
    write_safetensors(dense / "model.safetensors", loaded.numbers())
    loaded.close()
    got, want = served_logits(open_checkpoint(packed), IDS), dense_logits(dense, IDS)
    figures.append({"family": family, "source": "packed", "format": form, **spread_errors(got, want, FAMILIES[family])})
