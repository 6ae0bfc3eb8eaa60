"""How a step lies in memory (rows D3 to D5): slots of tokens, one run of rows without padding, logits where wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.kernels import BACKENDS
from octavo.models.registry import build_program
from octavo.program.buffers import BufferStore
from octavo.program.executable import ExecutableSpec, Limits
from octavo.program.formats import choose_formats
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.program.lower import lower
from octavo.quant.table import Wishes
from tests.models.harness import TinyCheckpoint, native_backend
from tests.tiny import VOCAB, write_tiny

SIZE, MOST = 16, 160
"""Positions of a block; tokens of a step at most."""
LIMITS = Limits(max_tokens=MOST, max_rows=MOST, max_seqs=4, max_len=128, block_size=SIZE)
STEPS = [([20, 1, 33], [0, 0, 0]), ([1, 18, 40], [20, 1, 33])]
"""Tokens of each sequence and its first position: prompts, chunks and decodes side by side; blocks half full."""


@dataclass
class Machine:
    """A backend whose buffers share no byte, and whose memory was 0xFF when its last step began."""

    spec: ExecutableSpec
    backend: Any
    arena: NDArray[np.uint8]
    kv: NDArray[np.float32]
    """[blocks, layers, K or V, kv_heads, SIZE, head_dim]; NaN where nothing was written."""
    across: bool
    """K of a block lies as [head_dim, SIZE], as the native kernels read it."""
    tokens: NDArray[np.int32]

    def slots(self) -> NDArray[np.float32]:
        """[blocks, SIZE, numbers]: what the cache holds of each slot, over all layers and heads."""
        k, v = self.kv[:, :, 0], self.kv[:, :, 1]
        if self.across:
            k = k.reshape(*k.shape[:3], -1, SIZE).swapaxes(3, 4)
        return np.stack([k, v], axis=4).transpose(0, 3, 1, 2, 4, 5).reshape(len(k), SIZE, -1)

    def run(self, tables: NDArray[np.int32], rows: list[list[int]]) -> list[NDArray[np.float32]]:
        """All steps on an empty cache; the logits of each, one row a wanted position."""
        self.backend.poison()
        self.backend.tokens[1:4] = self.tokens
        self.backend.inputs["table"][0][:3] = tables
        found = []
        for (counts, starts), wanted in zip(STEPS, rows, strict=True):
            self.arena.fill(0xFF)
            for b in range(3):
                values = {"slot": b + 1, "count": counts[b], "start": starts[b], "kv_len": starts[b] + counts[b]}
                for name, value in (values | {"rows": wanted[b], "skip": 0}).items():
                    self.backend.inputs[name][b] = value
            self.backend.forward(3)
            store = BufferStore(self.arena, self.spec.buffers)
            found.append(store.numbers(self.spec.logits, sum(wanted)).copy())
        return found


@pytest.fixture(params=["reference", "native"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    if request.param == "native":
        pytest.importorskip("octavo._native", reason="the native module is not built")
    checkpoint = TinyCheckpoint.open(write_tiny(tmp_path, "llama", tokenizer=False))
    program, wishes = build_program(checkpoint.config), Wishes(dtype="float32")
    formats = choose_formats(program, checkpoint.tensors, wishes).by_weight
    spec = lower(program, formats, LIMITS, replace(BACKENDS[request.param], reuses=False), kv_dtype="f32")
    tokens = np.random.default_rng(3).integers(0, VOCAB, (3, LIMITS.max_len), dtype=np.int32)
    blocks = 3 * LIMITS.max_blocks + 1
    group = spec.kv[0]
    shape = (blocks, group.layers, 2, group.kv_heads, SIZE, group.head_dim)
    if request.param == "native":
        backend = native_backend(spec, checkpoint, num_blocks=blocks, threads=2)
        kv = backend._kv.view(0, blocks * spec.block_bytes).view(np.float32).reshape(shape)
        yield Machine(spec, backend, backend._activations.view(0, spec.arena_bytes), kv, True, tokens)
        backend.close()
    else:
        exe = ReferenceExecutable(spec, load_weights(spec, checkpoint.tensors), num_blocks=blocks)
        yield Machine(spec, exe, exe.arena, exe._pool.view(np.float32).reshape(shape), False, tokens)


def tables(seed: int | None) -> NDArray[np.int32]:
    """[3, blocks a sequence]: blocks from 1 on, in order or scattered."""
    blocks = np.arange(1, 3 * LIMITS.max_blocks + 1, dtype=np.int32)
    return (blocks if seed is None else np.random.default_rng(seed).permutation(blocks)).reshape(3, -1)


def test_a_token_lies_in_its_tables_block_at_its_offset(machine: Machine) -> None:
    """Slot = block * SIZE + offset, by the sequence's own table; no other byte of the cache is touched."""
    kept = []
    for table in (tables(None), tables(8)):
        logits = machine.run(table, [[1, 1, 1], [1, 1, 1]])
        length = [20 + 1, 1 + 18, 33 + 40]
        where = [(table[b][p // SIZE], p % SIZE) for b in range(3) for p in range(length[b])]
        blocks, offsets = np.array(where).T
        slots = machine.slots()
        written = np.zeros(slots.shape[:2], bool)
        written[blocks, offsets] = True
        assert not np.isnan(slots[written]).any() and np.isnan(slots[~written]).all()
        kept.append((slots[blocks, offsets], *logits))
    for one, other in zip(*kept, strict=True):
        assert (one == other).all(), "the same keys, values and logits, wherever the blocks are"


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 0, 0]])
def test_no_row_is_padding_and_logits_are_of_wanted_rows_only(machine: Machine, rows: list[int]) -> None:
    """Of T tokens and R wanted rows, every buffer holds T or R rows, one after the other; behind them nobody wrote."""
    machine.run(tables(8), [[1, 1, 1], rows])
    counts = {"T": sum(STEPS[1][0]), "R": sum(rows)}
    seen = dict.fromkeys(counts, 0)
    for buffer in machine.spec.buffers:
        raw = machine.arena[buffer.offset : buffer.offset + buffer.size].reshape(-1, buffer.stride)
        used = counts[str(buffer.rows)]
        assert len(raw) == MOST and (raw[used:] == 0xFF).all(), buffer.name
        assert (raw[:used] != 0xFF).any(axis=1).all(), buffer.name
        seen[str(buffer.rows)] += 1
    assert seen["T"] >= 3 and seen["R"] >= 2, "activations; gathered rows and logits"


def test_logits_are_those_of_the_last_positions(machine: Machine) -> None:
    every = machine.run(tables(8), [[20, 1, 33], [1, 18, 40]])
    few = machine.run(tables(8), [[1, 1, 1], [1, 2, 3]])
    last = [[19, 20, 53], [0, 17, 18, 56, 57, 58]]
    for whole, wanted, rows in zip(every, few, last, strict=True):
        apart = np.abs(whole[None] - wanted[:, None]).max(axis=2)  # [wanted, all positions]
        assert (apart.argmin(axis=1) == rows).all() and apart.min(axis=1).max() < 1e-5
