"""Block formats of files against the gguf package, value by value."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.kernels.reference.blocks import BLOCKS, blocks
from octavo.weights.tensors import SOURCES

OURS = ("z4", "s8", "q8_0c", "s8c")
GGUF = [source for source in BLOCKS if source not in OURS]
ROWS = 24


def raw_blocks(source: str, seed: int) -> NDArray[np.uint8]:
    """Random bytes [ROWS, 4 blocks], after rows of equal edge bytes: zeros, ones, sign bits, infinities, NaNs."""
    nbytes = 4 * BLOCKS[source].nbytes
    raw = np.random.default_rng(seed).integers(0, 256, (ROWS, nbytes), dtype=np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F, 0x7C, 0x01)):
        raw[row] = byte
    return raw


@pytest.mark.parametrize("source", GGUF)
def test_equals_the_gguf_package(source: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle and is not installed")
    from gguf.quants import dequantize

    for seed in range(8):
        raw = raw_blocks(source, seed)
        with np.errstate(all="ignore"):
            want = dequantize(raw, gguf.GGMLQuantizationType[source.upper()])
        got = blocks(source, raw.reshape(-1), ROWS, 4 * BLOCKS[source].size).dense()
        assert np.isfinite(want).mean() > 0.6
        np.testing.assert_array_equal(got, want)


def test_our_own_blocks() -> None:
    rng = np.random.default_rng(3)
    scale, zero, codes = (
        rng.random((5, 2)).astype(np.float16),
        rng.integers(0, 16, (5, 2)),
        rng.integers(0, 16, (5, 64)),
    )
    packed = (codes.reshape(5, 2, 2, 16)[:, :, 0] | codes.reshape(5, 2, 2, 16)[:, :, 1] << 4).astype(np.uint8)
    raw = np.concatenate([scale.view(np.uint8).reshape(5, 2, 2), zero[:, :, None].astype(np.uint8), packed], axis=2)
    want = scale.astype(np.float32).repeat(32, axis=1) * (codes - zero.repeat(32, axis=1))
    np.testing.assert_array_equal(blocks("z4", raw.reshape(-1), 5, 64).dense(), want)
    wide, signed = rng.standard_normal((5, 2)).astype(np.float32), rng.integers(-128, 128, (5, 64), dtype=np.int8)
    raw = np.concatenate([wide.view(np.uint8).reshape(5, 2, 4), signed.view(np.uint8).reshape(5, 2, 32)], axis=2)
    want = wide.repeat(32, axis=1) * signed
    for source in ("s8", "s8c"):
        np.testing.assert_array_equal(blocks(source, raw.reshape(-1), 5, 64).dense(), want)
    raw = raw_blocks("q8_0c", 0).reshape(-1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(*(blocks(source, raw, ROWS, 128).dense() for source in ("q8_0", "q8_0c")))


def test_every_source_has_a_row() -> None:
    assert {s: (b.size, b.nbytes) for s, b in BLOCKS.items()} == {s: v for s, v in SOURCES.items() if v[0] > 1}
