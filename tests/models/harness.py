"""A one-sequence driver of the reference backend, as thin as a runner can be: for tests of models and lowering."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.kernels import BACKENDS
from octavo.models.registry import build_program
from octavo.program.buffers import BufferStore
from octavo.program.executable import ExecutableSpec, Limits
from octavo.program.formats import choose_formats
from octavo.program.interpret import ReferenceExecutable
from octavo.program.lower import lower
from octavo.program.split import split_joins
from octavo.quant.table import Wishes
from tests.tiny import read_tensors


def lowered(
    checkpoint: Any,
    *,
    dtype: str = "float32",
    quantization: str | None = None,
    backend: str = "reference",
    max_tokens: int = 64,
    max_len: int = 256,
    block_size: int = 16,
    kv_dtype: str | None = None,
) -> ExecutableSpec:
    """A checkpoint's Program, lowered."""
    wishes = Wishes(dtype=dtype, quantization=quantization)
    program = split_joins(build_program(checkpoint.config), checkpoint.tensors, wishes)
    formats = choose_formats(program, checkpoint.tensors, wishes)
    limits = Limits(max_tokens=max_tokens, max_rows=max_tokens, max_seqs=4, max_len=max_len, block_size=block_size)
    kv = kv_dtype or ("f32" if dtype == "float32" else "bf16")
    return lower(program, formats.by_weight, limits, BACKENDS[backend], kv_dtype=kv)


@dataclass(frozen=True)
class MemoryTensor:
    """A tensor of a tiny checkpoint, in the file's own type."""

    source: str
    values: NDArray[np.float32]
    damage: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return len(self.read())

    def read(self) -> NDArray[np.uint8]:
        kind: Any = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[self.source]
        return np.frombuffer(self.values.astype(kind).tobytes(), np.uint8)


@dataclass(frozen=True)
class TinyCheckpoint:
    """What `lowered` needs of a directory that tests.tiny wrote, without octavo.weights."""

    config: dict[str, Any]
    tensors: dict[str, MemoryTensor]

    @classmethod
    def open(cls, directory: Path) -> TinyCheckpoint:
        config = json.loads((directory / "config.json").read_text())
        source = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[config["dtype"]]
        return cls(config, {name: MemoryTensor(source, v) for name, v in read_tensors(directory).items()})


class Sequence1:
    """One sequence in slot 0, its blocks scattered by `seed`; all KV groups share the pool."""

    def __init__(self, executable: Any, *, seed: int = 0, num_blocks: int) -> None:
        """`executable`: the reference, or a backend with its surface."""
        self.executable = executable
        tables = executable.inputs["table"]
        order = np.random.default_rng(seed).permutation(np.arange(1, num_blocks))
        for table, blocks in zip(tables, np.array_split(order, len(tables)), strict=True):
            used = blocks[: table.shape[1]]
            table[0, : len(used)] = used
        self.computed = 0

    def compute(self, ids: Sequence[int], *, rows: int, chunk: int) -> None:
        """Compute `ids` from where the sequence stands; the last `rows` positions of the last chunk give logits."""
        exe, end = self.executable, self.computed + len(ids)
        exe.tokens[0, self.computed : end] = ids
        while self.computed < end:
            count = min(chunk, end - self.computed)
            last = self.computed + count == end
            for name, value in (("slot", 0), ("count", count), ("start", self.computed)):
                exe.inputs[name][0] = value
            exe.inputs["kv_len"][0] = self.computed + count
            exe.inputs["rows"][0] = rows if last else 0
            exe.forward(1)
            self.computed += count


def all_logits(
    spec: ExecutableSpec, weights: Mapping[str, NDArray[np.float32]], ids: Sequence[int], *, chunk: int, seed: int = 0
) -> NDArray[np.float32]:
    """Logits [len(ids), vocab], computed in chunks of `chunk`."""
    blocks = len(spec.kv) * (spec.limits.max_blocks + 3)
    executable = ReferenceExecutable(spec, weights, num_blocks=blocks)
    for cache in executable.kv:
        cache[...] = np.nan  # what nobody wrote must reach no answer
    sequence = Sequence1(executable, seed=seed, num_blocks=blocks)
    out = []
    for first in range(0, len(ids), chunk):
        piece = ids[first : first + chunk]
        sequence.compute(piece, rows=len(piece), chunk=chunk)
        out += [executable.logits(r).copy() for r in range(len(piece))]
    return np.stack(out)


def native_backend(spec: ExecutableSpec, checkpoint: Any, *, num_blocks: int, threads: int = 1) -> Any:
    """The spec on the native backend, its KV arenas poisoned. Close it."""
    from octavo.kernels.native import team_on, team_seats
    from octavo.runner.native import NativeBackend

    backend = NativeBackend(spec, team_on(team_seats(threads=threads)), num_blocks=num_blocks)
    backend.pack(checkpoint.tensors, progress=lambda nbytes: None)
    backend.start(checkpoint.tensors)
    backend.poison()
    return backend


def served_logits(checkpoint: Any, ids: Sequence[int], **wishes: Any) -> NDArray[np.float32]:
    """Logits [len(ids), vocab] computed natively in one step, as the checkpoint is served. `wishes`: lowered's."""
    spec = lowered(checkpoint, backend="native", **{"dtype": "auto", **wishes})
    blocks = len(spec.kv) * spec.limits.max_blocks + 3
    backend = native_backend(spec, checkpoint, num_blocks=blocks)
    try:
        Sequence1(backend, num_blocks=blocks).compute(ids, rows=len(ids), chunk=len(ids))
        store = BufferStore(backend._activations.view(0, spec.arena_bytes), spec.buffers)
        return store.numbers(spec.logits, len(ids)).copy()
    finally:
        backend.close()


def spread_errors(got: NDArray[Any], want: NDArray[Any], worst: float) -> dict[str, float]:
    """`errors`; asserted is the root of the mean square over the logits' spread."""
    assert np.sqrt(((got - want) ** 2).mean()) <= worst * float(want.std())
    return errors(got, want)


def errors(got: NDArray[Any], want: NDArray[Any]) -> dict[str, float]:
    """Of formats that round, for a cell of docs/models.md: the largest, and over the logits' spread."""
    off = float(np.abs(got - want).max())
    return {"absolute": off, "relative": off / float(want.std())}
