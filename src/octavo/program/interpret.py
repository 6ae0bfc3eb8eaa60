"""The reference backend: NumPy runs an ExecutableSpec behind the interface that the native Executable has.

It reads the same batch fields, keeps the same columns and buffer dtypes and samples by the same rules, so a runner can
hold either (docs/dev/native-abi.md). It is the specification, not fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.kernels.reference import attend as attention
from octavo.kernels.reference import experts, linear, rows, weights
from octavo.kernels.reference import sample as sampling
from octavo.program.buffers import BufferStore
from octavo.program.executable import ExecutableSpec, KVSpec, Limits, PlacedWeight
from octavo.program.formats import SourceTensor
from octavo.program.ir import (
    Act,
    Add,
    Attend,
    Cast,
    Combine,
    Embed,
    ExpertLinear,
    Gather,
    Head,
    KVWrite,
    Linear,
    Norm,
    Op,
    Rope,
    Route,
    Scale,
    View,
    inner,
)
from octavo.quant.table import PACKED

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]

COLUMNS: Mapping[str, tuple[str, float]] = {
    "temperature": ("f4", 0.0),
    "top_k": ("i4", 0),
    "top_p": ("f4", 1.0),
    "min_p": ("f4", 0.0),
    "presence": ("f4", 0.0),
    "frequency": ("f4", 0.0),
    "repetition": ("f4", 1.0),
    "seed": ("u8", 0),
    "num_prompt": ("i4", 0),
    "min_tokens": ("i4", 0),
}
"""Per-slot columns: dtype and neutral value."""


class Batch(Struct, frozen=True):
    """The T-sized fields of a step, made from B numbers each."""

    token: I32
    pos: I32
    seq_start: I32
    """[B + 1]: sequence b holds tokens [seq_start[b], seq_start[b + 1])."""
    start: I32
    """[B] first position of each sequence's chunk."""
    tables: list[I32]
    """Per group [B, max_blocks]."""
    row: I32
    """[R] index of a wanted row among the tokens."""

    @property
    def num_seqs(self) -> int:
        return len(self.start)


def make_batch(inputs: Mapping[str, Any], tokens: I32, num_seqs: int, limits: Limits) -> Batch:
    """The step's fields from the first num_seqs entries of `inputs`. Raises RuntimeError past the limits."""
    n = num_seqs
    slot, count, start = inputs["slot"][:n], inputs["count"][:n], inputs["start"][:n]
    ends = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    pos = np.concatenate([np.arange(s, s + c, dtype=np.int32) for s, c in zip(start, count, strict=True)])
    last = ends[1:] - inputs["skip"][:n]
    row = np.concatenate([np.arange(e - r, e, dtype=np.int32) for e, r in zip(last, inputs["rows"][:n], strict=True)])
    if len(pos) > limits.max_tokens or len(row) > limits.max_rows:
        raise RuntimeError(
            f"step: got {len(pos)} tokens, {len(row)} rows, allowed: {limits.max_tokens}, {limits.max_rows}"
        )
    tables = [t[:n].copy() for t in inputs["table"]]
    return Batch(tokens[np.repeat(slot, count), pos], pos, ends, start.copy(), tables, row)


def load_weights(
    spec: ExecutableSpec,
    tensors: Mapping[str, SourceTensor],
    *,
    names: Collection[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, F32]:
    """The numbers of each weight (or of those named) as float32: matrices [n, k] (experts' [experts, n, k]), vectors
    [n], tables [positions, k].

    `progress` is told the source bytes of each tensor read.
    """
    wanted = [w for w in spec.weights if names is None or w.weight.name in names]
    return {w.weight.name: _load(w, tensors, progress) for w in wanted}


def _load(placed: PlacedWeight, tensors: Mapping[str, SourceTensor], progress: Callable[[int], None] | None) -> F32:
    weight = placed.weight
    if weight.kind == "table":
        return weight.make(placed.n // weight.k)
    out = np.empty((weight.experts * weight.n, weight.k), np.float32)
    at = 0
    for part in weight.stored(tensors):
        tensor = tensors[part.tensor]
        if tensor.source.startswith(PACKED):
            raise ModelError(
                f"tensor {part.tensor}: got bytes packed for the native kernels, allowed: --executor native"
            )
        data = tensor.read()
        form = "f32" if placed.format == "vec" else placed.format
        out[at : at + part.rows] = weights.dense_weight(form, tensor.source, data, part.rows, weight.k)
        if weight.offset:
            out[at : at + part.rows] += np.float32(weight.offset)
        at += part.rows
        if progress is not None:
            progress(data.nbytes)
    if weight.kind == "vec":
        return out[:, 0].copy() if weight.balance is None else weight.balance.of(out[:, 0])
    return out if weight.experts == 1 else out.reshape(weight.experts, weight.n, weight.k)


class OpRunner:
    """Computes single ops over buffers, weights and caches: the reference's loop, and other backends' host ops."""

    def __init__(self, spec: ExecutableSpec, store: BufferStore, numbers: Mapping[str, F32], kv: list[Any]) -> None:
        """`kv`: per group [layers, num_blocks, 2, kv_heads, block_size, head_dim] in the KV dtype."""
        self._spec = spec
        self._store = store
        self._numbers = numbers
        self._kv = kv

    def run(self, op: Op, batch: Batch) -> None:
        """One op over the batch."""
        op = inner(op)
        store = self._store
        match op:
            case Embed(out=out, weight=w):
                store.write(out, rows.embed(self._numbers[w], batch.token))
            case Linear(x=x, out=out, weight=w, bias=bias, accumulate=accumulate, scale=scale):
                count = self._rows(x, batch)
                b = None if bias is None else self._numbers[bias]
                y = linear.dense(store.numbers(x.buffer, count), self._numbers[w], b)
                y = rows.scale(y, scale)
                if accumulate:
                    y = rows.add(store.read(out, count).reshape(count, out.columns), y)
                store.write(out, y)
            case Head(x=x, out=out, weight=w):
                count = self._rows(x, batch)
                store.write(out, linear.dense(store.numbers(x.buffer, count), self._numbers[w]))
            case Norm(x=x, out=out, weight=w, eps=eps, per_head=per_head):
                values = store.read(x, self._rows(x, batch))
                if not per_head:
                    values = values.reshape(len(values), x.columns)
                store.write(out, rows.rms_norm(values, self._numbers[w], eps))
            case Rope(x=x, out=out, cos=cos, sin=sin):
                values = store.read(x, self._rows(x, batch))
                store.write(out, rows.rope(values, self._numbers[cos][batch.pos], self._numbers[sin][batch.pos]))
            case KVWrite():
                self._kv_write(op, batch)
            case Attend():
                self._attend(op, batch)
            case Act(gate=gate, up=up, out=out, fn=fn):
                count = self._rows(gate, batch)
                store.write(out, rows.ACTIVATIONS[fn](store.read(gate, count), store.read(up, count)))
            case Add(a=a, b=b, out=out, scale=scale):
                count = self._rows(a, batch)
                left, right = (store.read(v, count).reshape(count, v.columns) for v in (a, b))
                store.write(out, rows.add(left, rows.scale(right, scale)))
            case Scale(x=x, out=out, factor=factor, softcap=softcap):
                store.write(out, rows.scale(store.read(x, self._rows(x, batch)), factor, softcap=softcap))
            case Gather(x=x, out=out):
                store.write(out, rows.gather(store.read(x, len(batch.token)), batch.row))
            case Route(x=x, ids=ids, out=out, norm=norm, factor=factor):
                logits = store.read(x, self._rows(x, batch)).reshape(-1, x.columns)
                chosen, weighed = experts.route(logits, ids.columns, norm=norm, factor=factor)
                store.write(ids, chosen.astype(np.float32))
                store.write(out, weighed)
            case ExpertLinear(x=x, ids=ids, out=out, weight=w):
                chosen = store.numbers(ids.buffer, self._rows(ids, batch)).astype(np.int32)
                values = store.numbers(x.buffer, self._rows(x, batch))
                matrices = self._numbers[w].reshape(-1, out.columns, x.columns)
                store.write(out, experts.expert_linear(values, chosen, matrices))
            case Combine(x=x, weights=weighed_by, out=out):
                count = self._rows(out, batch)
                values = store.read(x, self._rows(x, batch)).reshape(count, -1, x.columns)
                store.write(out, experts.combine(values, store.numbers(weighed_by.buffer, count)))
            case Cast(x=x, out=out):
                store.write(out, store.read(x, self._rows(x, batch)))

    def _rows(self, view: View, batch: Batch) -> int:
        buffer = self._spec.buffers[view.buffer]
        return buffer.times * {"T": len(batch.token), "R": len(batch.row), "B": batch.num_seqs}[buffer.rows]

    def _kv_write(self, op: KVWrite, batch: Batch) -> None:
        size = self._spec.kv[op.group].block_size
        seq = np.repeat(np.arange(batch.num_seqs), np.diff(batch.seq_start))
        block = batch.tables[op.group][seq, batch.pos // size].astype(np.int64)
        slots = np.where(block > 0, block * size + batch.pos % size, -1)  # the null block takes nothing
        k, v = (self._store.read(view, len(batch.token)) for view in (op.k, op.v))
        if op.balance is not None:
            k = k / self._numbers[op.balance].reshape(k.shape[1:])
        attention.kv_write(self._kv[op.group][op.layer], k, v, slots)

    def _attend(self, op: Attend, batch: Batch) -> None:
        q = self._store.read(op.q, len(batch.token))
        if op.balance is not None:
            factors = self._numbers[op.balance].reshape(-1, q.shape[2])
            q = q * np.repeat(factors, q.shape[1] // len(factors), axis=0)
        out = np.empty_like(q)
        cache, window = self._kv[op.group][op.layer], self._spec.kv[op.group].window
        for b in range(batch.num_seqs):
            span = slice(batch.seq_start[b], batch.seq_start[b + 1])
            start = int(batch.start[b])
            out[span] = attention.attend(
                q[span], cache, batch.tables[op.group][b], start, op.scale, window=window, softcap=op.softcap
            )
        self._store.write(op.out, out)


def _layers_of(pool: NDArray[np.uint8], group: KVSpec) -> NDArray[Any]:
    """The pool as one group sees it: [layers, *cache of reference/attend.py], a view."""
    shape = (len(pool), -1, 2, group.kv_heads, group.block_size)
    if group.dtype == "int8":
        blocks: NDArray[Any] = pool.view(attention.code_dtype(group.head_dim)).reshape(shape)
    else:
        numbers = pool.view(ml_dtypes.bfloat16 if group.dtype == "bf16" else np.float32)
        blocks = numbers.reshape(*shape, group.head_dim)
    return blocks.swapaxes(0, 1)[: group.layers]


class ReferenceExecutable:
    """Runs an ExecutableSpec in NumPy; the surface of the native Executable."""

    def __init__(self, spec: ExecutableSpec, numbers: Mapping[str, F32], *, num_blocks: int) -> None:
        """`numbers`: from load_weights. `num_blocks` of the pool that all groups share, with the null block."""
        limits = spec.limits
        self.spec = spec
        self.arena = np.zeros(spec.arena_bytes, np.uint8)
        self._pool = np.zeros((num_blocks, spec.block_bytes), np.uint8)
        self.kv: list[Any] = [_layers_of(self._pool, group) for group in spec.kv]
        self.inputs: dict[str, Any] = {
            name: np.zeros(limits.max_seqs, np.int32) for name in ("slot", "count", "start", "kv_len", "rows", "skip")
        }
        self.inputs["table"] = [np.zeros((limits.max_seqs, limits.max_blocks), np.int32) for _ in spec.kv]
        self.columns: dict[str, Any] = {
            name: np.full(limits.max_seqs, neutral, dtype) for name, (dtype, neutral) in COLUMNS.items()
        }
        self.tokens: I32 = np.zeros((limits.max_seqs, limits.max_len), np.int32)
        self.sampled: I32 = np.zeros(limits.max_rows, np.int32)
        self.finite: NDArray[np.uint8] = np.ones(limits.max_rows, np.uint8)
        self._bias: dict[int, tuple[I32, F32]] = {}
        self._stops: dict[int, I32] = {}
        self._store = BufferStore(self.arena, spec.buffers)
        self._runner = OpRunner(spec, self._store, numbers, self.kv)

    @classmethod
    def load(
        cls,
        spec: ExecutableSpec,
        tensors: Mapping[str, SourceTensor],
        *,
        num_blocks: int,
        progress: Callable[[int], None] | None = None,
    ) -> ReferenceExecutable:
        """With the weights read from a checkpoint."""
        return cls(spec, load_weights(spec, tensors, progress=progress), num_blocks=num_blocks)

    def forward(self, num_seqs: int, segment: str | None = None) -> None:
        """Run all segments, or one, over the first num_seqs entries of `inputs`."""
        batch = make_batch(self.inputs, self.tokens, num_seqs, self.spec.limits)
        first, end = (0, len(self.spec.ops)) if segment is None else self.spec.segments[segment]
        # A NaN or an infinity is an answer here (`finite`), not an accident.
        with np.errstate(invalid="ignore", over="ignore"):
            for op in self.spec.ops[first:end]:
                self._runner.run(op, batch)

    def sample(self, num_seqs: int) -> None:
        """Sample every logit row; each sequence's last row is appended to its slot's tokens."""
        at = 0
        for b in range(num_seqs):
            slot, count = int(self.inputs["slot"][b]), int(self.inputs["rows"][b])
            end = int(self.inputs["start"][b] + self.inputs["count"][b] - self.inputs["skip"][b])
            params = self._params(slot)
            for r in range(count):
                logits, known = self.logits(at), self.tokens[slot, : end - count + r + 1]
                self.finite[at] = np.isfinite(logits).all()
                self.sampled[at] = sampling.sample(logits, params, known) if self.finite[at] else 0
                at += 1
            if count and end < self.tokens.shape[1]:
                self.tokens[slot, end] = self.sampled[at - 1]

    def logits(self, row: int) -> F32:
        """Raw logits of a row of the last head, f32 [vocab]."""
        return np.asarray(self._store.numbers(self.spec.logits, row + 1)[row])

    def logprobs(self, row: int, target: int, top: int) -> tuple[float, int, Sequence[int], Sequence[float]]:
        """(logprob of target, its rank, top ids, their logprobs) from the raw logits of a row."""
        return sampling.logprobs(self.logits(row), target, top)

    def set_bias(self, slot: int, ids: I32, values: F32) -> None:
        """logit_bias of a slot; empty for none."""
        self._bias[slot] = (ids, values)

    def set_stops(self, slot: int, ids: I32) -> None:
        """Ids that min_tokens forbids."""
        self._stops[slot] = ids

    def buffer(self, name: str, count: int) -> F32:
        """The numbers [count, width] a buffer holds now (it may have been reused): for tests and debugging."""
        index = next(i for i, b in enumerate(self.spec.buffers) if b.name == name)
        return self._store.numbers(index, count)

    def poison(self) -> None:
        """Fill the caches with NaN, so that a test sees stale memory that reaches a result."""
        self._pool.fill(0xFF)  # NaN in every KV dtype

    def prepare(self, block: int) -> bool:
        """Nothing to make ready."""
        return False

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""

    def _params(self, slot: int) -> sampling.RowParams:
        values: dict[str, Any] = {name: column[slot].item() for name, column in self.columns.items()}
        none = (np.empty(0, np.int32), np.empty(0, np.float32))
        stops = self._stops.get(slot, none[0])
        return sampling.RowParams(**values, bias=self._bias.get(slot, none), stops=stops)
