"""Octavo's side: a checkpoint opened by its own reader, lowered, and run on a backend, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.native import unpack_rows
from octavo.kernels.reference.weights import dense_weight
from octavo.program.buffers import BufferStore
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import lowered, native_backend

MAX_SEQS = 4
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Chunk:
    """`ids` at [start, start + len(ids)) of the sequence in `slot`; its last `rows` positions give logits."""

    slot: int
    start: int
    ids: Sequence[int]
    rows: int


class Loaded:
    """A checkpoint on a backend. Every sequence has blocks of its own, scattered; the cache is poisoned."""

    def __init__(self, path: Path, backend: str, *, max_len: int, threads: int = 1, **wishes: Any) -> None:
        """`wishes`: dtype, quantization, kv_dtype of tests.models.harness.lowered."""
        checkpoint = open_checkpoint(path)
        self.tensors = checkpoint.tensors
        self.spec = lowered(checkpoint, backend=backend, max_len=max_len, max_tokens=max_len, **wishes)
        widest = self.spec.limits.max_blocks
        groups = len(self.spec.kv)
        blocks = MAX_SEQS * groups * widest + 1
        if backend == "native":
            self.backend: Any = native_backend(self.spec, checkpoint, num_blocks=blocks, threads=threads)
            arena = self.backend._activations.view(0, self.spec.arena_bytes)
        else:
            self.backend = ReferenceExecutable(
                self.spec, load_weights(self.spec, checkpoint.tensors), num_blocks=blocks
            )
            arena = self.backend.arena
        self.store = BufferStore(arena, self.spec.buffers)
        self.backend.poison()
        order = np.random.default_rng(3).permutation(np.arange(1, blocks, dtype=np.int32))
        self.tables = order.reshape(groups, MAX_SEQS, widest)

    def close(self) -> None:
        self.backend.close()

    def stored(self) -> dict[str, F32]:
        """The tensors of the checkpoint that the model has, as float32."""
        out: dict[str, F32] = {}
        for placed in self.spec.weights:
            columns = 1 if placed.format == "vec" else placed.weight.k
            for part in placed.weight.parts:
                tensor = self.tensors[part.tensor]
                values = dense_weight("f32", tensor.source, tensor.read(), part.rows, columns)
                out[part.tensor] = values.reshape(tensor.shape)
        return out

    def numbers(self) -> dict[str, F32]:
        """The same as the native backend computes with them: packed matrices unpacked."""
        out = self.stored()
        for placed in self.spec.weights:
            if placed.format == "vec":
                continue
            weight, at = placed.weight, 0
            panels = self.backend.weights.view(self.backend.offsets[weight.name], placed.bytes)
            rows = np.empty((weight.experts, weight.n, weight.k), np.float32)
            for expert, values in enumerate(rows):
                own = panels[expert * placed.stride : (expert + 1) * placed.stride]
                unpack_rows(placed.format, weight.n, weight.k, own, np.arange(weight.n, dtype=np.int32), values)
            for part in weight.parts:
                out[part.tensor] = rows.reshape(-1, weight.k)[at : at + part.rows]
                at += part.rows
        return out

    def share(self, giver: int, taker: int, positions: int) -> None:
        """The taker's first `positions` (whole blocks) are the giver's: a prefix hit."""
        count = positions // self.spec.limits.block_size
        self.tables[:, taker, :count] = self.tables[:, giver, :count]

    def step(self, *chunks: Chunk) -> list[F32]:
        """Logits [rows, vocab] of each chunk."""
        exe = self.backend
        for b, chunk in enumerate(chunks):
            end = chunk.start + len(chunk.ids)
            exe.tokens[chunk.slot, chunk.start : end] = chunk.ids
            for group, table in enumerate(self.tables):
                exe.inputs["table"][group][b] = table[chunk.slot]
            values = {"slot": chunk.slot, "count": len(chunk.ids), "start": chunk.start, "kv_len": end}
            for name, value in {**values, "rows": chunk.rows, "skip": 0}.items():
                exe.inputs[name][b] = value
        exe.forward(len(chunks))
        rows = self.store.numbers(self.spec.logits, sum(c.rows for c in chunks)).copy()
        return np.split(rows, np.cumsum([c.rows for c in chunks])[:-1])

    def chunked(self, ids: Sequence[int], size: int, *, slot: int = 0, start: int = 0) -> F32:
        """Logits of ids[start:], computed `size` positions a step."""
        pieces = []
        for first in range(start, len(ids), size):
            piece = ids[first : first + size]
            pieces += self.step(Chunk(slot, first, piece, len(piece)))
        return np.concatenate(pieces)
