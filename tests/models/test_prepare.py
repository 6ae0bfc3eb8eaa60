"""An idle engine touches KV memory that was never used: how far, and that nothing in it changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.harness import TinyCheckpoint, lowered
from tests.tiny import write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")


def test_memory_ahead_of_the_first_fresh_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.kernels.native import team_on, team_seats
    from octavo.runner import native

    monkeypatch.setattr(native, "AHEAD", 2 * native.PIECE)
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    spec = lowered(checkpoint, backend="native")
    piece = native.PIECE
    blocks = 5 * piece // spec.block_bytes  # a pool of five pieces, or a little less
    backend = native.NativeBackend(spec, team_on(team_seats(threads=1)), num_blocks=blocks)
    kv = backend._kv
    try:
        assert kv.resident() == 0
        assert [backend.prepare(1) for _ in range(4)] == [True, True, False, False]
        assert kv.resident() == 2 * piece, "from the piece of block 1 on, as far as AHEAD"

        whole = kv.view(0, kv.nbytes)
        whole[: 2 * piece] = 7
        used = 3 * piece // spec.block_bytes + 1  # the first fresh block lies in the fourth piece
        assert [backend.prepare(used) for _ in range(3)] == [True, True, False]
        assert backend.prepare(blocks) is False
        assert kv.resident() >= kv.nbytes - piece - 4096, "the third piece was used by somebody, so they say"
        np.testing.assert_array_equal(whole[: 2 * piece], 7)
    finally:
        backend.close()
