"""A handful of native ops over buffers that a test fills and reads: the Executable without a model.

net = Net(max_tokens=8)
x, y = net.buffer("f32", 20), net.buffer("q8", 20)
net.op("norm", *net.view(x), *net.view(y), net.vec(weight), 1e-5, 0)
net.write(x, rows)
net.forward([5])            # one sequence with 5 tokens
codes, scale, xsum = net.read_q8(y, 5)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

native = pytest.importorskip("octavo.kernels.native", reason="the native module is not built (scripts/dev-build)")

from tests.ops.linear_cases import q8t_parts  # noqa: E402 (needs the module)

F32 = NDArray[np.float32]
BF16 = np.dtype(ml_dtypes.bfloat16)
ISAS: list[str] = native.isas()
CODE_ERROR = {"q8": 0.51 / 63.75, "q8t": 0.51 / 127}
"""How far codes may be from the numbers, over the largest of them: half a step and what float32 adds. A step of q8 is
2^e / 64 where the largest is 127.5 / 128 * 2^e or more."""


def bf16(x: Any) -> F32:
    """Rounded to bfloat16, as float32."""
    return np.asarray(x, np.float32).astype(BF16).astype(np.float32)


class Net:
    """Builds a spec by hand. Buffers, weights and KV live in arenas that start as NaN."""

    def __init__(
        self,
        *,
        max_tokens: int = 64,
        max_rows: int = 8,
        max_seqs: int = 4,
        max_len: int = 64,
        block_size: int = 16,
        vocab: int = 64,
        isa: str | None = None,
        threads: int = 1,
    ) -> None:
        self.isa, self.threads, self.vocab = isa or native.isa(), threads, vocab
        self.block_size = block_size
        self.limits = {
            "max_tokens": max_tokens,
            "max_rows": max_rows,
            "max_seqs": max_seqs,
            "max_blocks": -(-max_len // block_size),
            "max_len": max_len,
        }
        self.buffers: list[tuple[str, int, str, int, int]] = []
        self.weights: list[tuple[str, int, int, int]] = []
        self.kv: list[dict[str, Any]] = []
        self.ops: list[tuple[Any, ...]] = []
        self.segments: dict[str, tuple[int, int]] = {}
        self._at = 0
        self._keep: list[Any] = []
        self.exe: Any = None

    # -- making -------------------------------------------------------------------------------------------------------
    def buffer(self, dtype: str, width: int, rows: str = "T", times: int = 1) -> int:
        count = times * self.limits[{"T": "max_tokens", "R": "max_rows", "B": "max_seqs"}[rows]]
        self.buffers.append((dtype, width, rows, self._at, times))
        self._at += count * native.row_bytes(dtype, width)
        return len(self.buffers) - 1

    def view(
        self, buffer: int, offset: int = 0, heads: int = 1, stride: int | None = None, width: int | None = None
    ) -> tuple[int, ...]:
        width = width or self.buffers[buffer][1] // heads
        return (buffer, offset, heads, stride or width, width)

    def vec(self, values: Any) -> int:
        values = np.ascontiguousarray(values, np.float32).reshape(-1)
        arena = native.Arena(max(values.nbytes, 64), False)
        arena.view(0, values.nbytes).view(np.float32)[:] = values
        self._keep.append(arena)
        self.weights.append(("vec", values.size, 1, arena.address))
        return len(self.weights) - 1

    def matrix(self, format: str, source: str, n: int, k: int, data: NDArray[np.uint8]) -> int:
        size = native.packed_bytes(format, n, k)
        arena = native.Arena(size, False)
        dst = arena.view(0, size)
        native.pack(format, source, n, k, np.ascontiguousarray(data).reshape(-1), dst, col0=0, n_total=n, threads=1)
        self._keep.append(arena)
        self.weights.append((format, n, k, arena.address))
        return len(self.weights) - 1

    def group(
        self, dtype: str, *, kv_heads: int, head_dim: int, num_blocks: int, layers: int = 1, window: int = 0
    ) -> int:
        head = {"f32": 4 * head_dim, "bf16": 2 * head_dim, "int8": head_dim + 2}[dtype]
        size = 2 * layers * self.block_size * kv_heads * head
        arena = native.Arena(size * num_blocks, False)
        arena.fill(0xFF)  # NaN in every dtype
        self._keep.append(arena)
        self.kv.append(
            {
                "dtype": dtype, "block_size": self.block_size, "kv_heads": kv_heads, "head_dim": head_dim,
                "layers": layers, "address": arena.address, "num_blocks": num_blocks, "block_bytes": size,
                "window": window,
            }
        )  # fmt: skip
        self.kv_arena = arena
        return len(self.kv) - 1

    def op(self, kind: str, *fields: float) -> None:
        self.ops.append((kind, *fields))

    def segment(self, name: str, first: int, end: int | None = None) -> None:
        self.segments[name] = (first, len(self.ops) if end is None else end)

    def build(self) -> Any:
        if self.exe is None:
            self.arena = native.Arena(max(self._at, 64), False)
            self.arena.fill(0xFF)
            before = native.isa()
            native.set_isa(self.isa)
            try:
                self.team = native.Team(self.threads)
                self.exe = native.Executable(
                    self.team,
                    {
                        "buffers": self.buffers, "weights": self.weights, "arena": self.arena, "kv": self.kv,
                        "limits": self.limits, "vocab": self.vocab, "ops": self.ops, "segments": self.segments,
                    },
                )  # fmt: skip
            finally:
                native.set_isa(before)
        return self.exe

    # -- running ------------------------------------------------------------------------------------------------------
    def forward(
        self,
        counts: Sequence[int],
        *,
        starts: Sequence[int] | None = None,
        rows: Sequence[int] | None = None,
        tables: Sequence[Sequence[int]] = (),
        tokens: Sequence[Sequence[int]] | None = None,
        segment: str | None = None,
    ) -> None:
        """Sequence b has slot b and counts[b] tokens from position starts[b]."""
        exe, n = self.build(), len(counts)
        for b, count in enumerate(counts):
            start = starts[b] if starts else 0
            exe.inputs["slot"][b] = b
            exe.inputs["count"][b] = count
            exe.inputs["start"][b] = start
            exe.inputs["kv_len"][b] = start + count
            exe.inputs["rows"][b] = rows[b] if rows else 0
            exe.inputs["skip"][b] = 0
            if tokens:
                exe.tokens[b, : len(tokens[b])] = tokens[b]
            for table in exe.inputs["table"]:
                if tables:
                    table[b, : len(tables[b])] = tables[b]
        exe.forward(n, segment)

    def close(self) -> None:
        if self.exe is not None:
            self.exe.close()
            self.team.close()
            self.exe = None

    def _rows(self, buffer: int, count: int) -> NDArray[np.uint8]:
        dtype, width, _, offset, _ = self.buffers[buffer]
        stride = native.row_bytes(dtype, width)
        self.build()
        raw: NDArray[np.uint8] = self.arena.view(offset, count * stride).reshape(count, stride)
        return raw

    def write(self, buffer: int, values: Any) -> None:
        """Rows from 0, rounded to the buffer's dtype."""
        dtype, width = self.buffers[buffer][:2]
        values = np.atleast_2d(np.asarray(values, np.float32))
        kind = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}.get(dtype, BF16)
        self._rows(buffer, len(values))[:, : width * kind.itemsize] = (
            np.ascontiguousarray(values.astype(kind)).view(np.uint8).reshape(len(values), -1)
        )

    def read(self, buffer: int, count: int) -> F32:
        dtype, width = self.buffers[buffer][:2]
        if dtype == "q8":
            codes, scale, _ = self.read_q8(buffer, count)
            return codes.astype(np.float32) * np.repeat(scale, 32, axis=1)[:, :width]
        if dtype == "q8t":
            by_token, of_row, _ = q8t_parts(self._rows(buffer, count), count, width)
            return np.asarray(by_token[:, :width].astype(np.float32) * of_row)
        kind = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}.get(dtype, BF16)
        raw = np.ascontiguousarray(self._rows(buffer, count)[:, : width * kind.itemsize])
        return np.asarray(raw.view(kind), np.float32)

    def bits(self, buffer: int, count: int) -> bytes:
        """Everything the rows hold, padding left out."""
        dtype, width = self.buffers[buffer][:2]
        if dtype == "q8":
            return b"".join(np.ascontiguousarray(part).tobytes() for part in self.read_q8(buffer, count))
        if dtype == "q8t":
            parts = q8t_parts(self._rows(buffer, count), count, width)
            return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        return np.ascontiguousarray(self._rows(buffer, count)[:, : width * (2 if dtype == "bf16" else 4)]).tobytes()

    def read_q8(self, buffer: int, count: int) -> tuple[NDArray[np.int8], F32, F32]:
        width = self.buffers[buffer][1]
        groups = -(-width // 32)
        raw = self._rows(buffer, count)
        codes = raw[:, :width].view(np.int8)
        scale = np.ascontiguousarray(raw[:, 32 * groups : 36 * groups]).view(np.float32)
        xsum = np.ascontiguousarray(raw[:, 36 * groups : 40 * groups]).view(np.float32)
        return codes, scale, xsum
