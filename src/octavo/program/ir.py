"""The Program: a model as data. A flat list of ops over views of named buffers; no weights, no device.

    buffer   [rows, width] where rows is symbolic: T tokens, R logit rows, B sequences, or a multiple of these
    view     columns of a buffer: `heads` pieces of `width`, `stride` apart, from `offset`; replaces split and concat
    weight   a declaration: the checkpoint tensors that fill it, and its shape
    segment  a named range of ops (embed, layers[i:j], head) that may run by itself

`lower` (lower.py) turns a Program into an ExecutableSpec; the same op classes appear in both.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Iterator, Mapping
from typing import ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.program.rope import RopeSpec

DTYPES = ("f32", "bf16", "q8", "i32")
"""Buffer dtypes. q8: int8 codes with a scale and a sum per group of 32 columns (docs/numerics.md)."""


class Rows(enum.StrEnum):
    """How many rows a buffer has in a step."""

    T = "T"
    """Tokens computed in the step."""
    R = "R"
    """Rows whose logits are wanted."""
    B = "B"
    """Sequences."""


class Buffer(Struct, frozen=True):
    """[rows, width] of activations; `dtype` None leaves the choice to lowering."""

    name: str
    rows: Rows
    width: int
    dtype: str | None = None
    port: bool = False
    """Outlives the Program (logits); never reused for anything else."""
    times: int = 1
    """Rows for each of `rows`: k where a token visits k experts, [k * T, width]; row t * k + j is token t's j-th."""


class View(Struct, frozen=True):
    """Columns of a buffer: head h covers [offset + h * stride, offset + h * stride + width)."""

    buffer: int
    offset: int
    heads: int
    stride: int
    width: int

    @property
    def columns(self) -> int:
        """Columns covered, over all heads."""
        return self.heads * self.width

    @property
    def end(self) -> int:
        """One past the last column."""
        return self.offset + (self.heads - 1) * self.stride + self.width

    def part(self, offset: int, width: int) -> View:
        """Columns [offset, offset + width) of a view of one head."""
        assert self.heads == 1 and offset >= 0 and offset + width <= self.width, (self, offset, width)
        return View(self.buffer, self.offset + offset, 1, width, width)

    def split(self, heads: int) -> View:
        """The same columns as `heads` equal heads side by side."""
        assert self.heads == 1 and self.width % heads == 0, (self, heads)
        width = self.width // heads
        return View(self.buffer, self.offset, heads, width, width)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first, end) of each run of columns."""
        for h in range(self.heads):
            first = self.offset + h * self.stride
            yield first, first + self.width

    def flat(self) -> tuple[int, int, int, int, int]:
        """As the native interface takes it."""
        return (self.buffer, self.offset, self.heads, self.stride, self.width)


# -- weights and KV ---------------------------------------------------------------------------------------------------
class Part(Struct, frozen=True):
    """A checkpoint tensor and how many rows (linear) or elements (vec) of the weight it fills, in order."""

    tensor: str
    rows: int


class Weight(Struct, frozen=True):
    """A matrix [n, k], a vector [n], or a table by position made at load.

    kind "linear": packed in an execution format; embeddings are linears whose rows are looked up.
    kind "vec": f32 vector (norm weights, biases). kind "table": f32 [positions, k], `table` says how it is made.
    """

    name: str
    kind: str
    n: int
    k: int
    parts: tuple[Part, ...] = ()
    offset: float = 0.0
    """Added to every element of a vec at load: norms that checkpoints store as w and compute as 1 + w."""
    table: tuple[RopeSpec, str] | None = None
    """(rope, "cos" or "sin")."""
    lookup: bool = False
    """An op reads single rows out of it (embed); it may feed the head as well."""
    experts: int = 1
    """Matrices [n, k] of one shape, packed one after another at a constant stride; `parts` fill expert after expert."""
    precise: bool = False
    """Never quantised by --quantization: small, and what it decides is not a matter of degree (routers)."""

    def stored(self, tensors: Container[str]) -> tuple[Part, ...]:
        """The parts as a checkpoint holds them: one, under the weight's own name, where it holds the weight whole."""
        return (Part(self.name, self.experts * self.n),) if self.name in tensors else self.parts

    def make(self, rows: int) -> NDArray[np.float32]:
        """A table's values [rows, k]."""
        assert self.table is not None
        spec, which = self.table
        cos, sin = spec.table(rows)
        return cos if which == "cos" else sin


class KVGroup(Struct, frozen=True):
    """Layers that share a block table. A block holds K and V of block_size positions, for every layer."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """A position sees itself and the `window` - 1 before it; None: all before it."""
    places: int = 0
    """Layers a block has room for, the same in all groups of a Program; 0: as many as there are."""

    @property
    def kind(self) -> str:
        return "full" if self.window is None else "sliding"


# -- ops --------------------------------------------------------------------------------------------------------------
class Embed(Struct, frozen=True):
    """out[t] = weight[token[t]]."""

    kind: ClassVar[str] = "embed"
    reads: ClassVar[tuple[str, ...]] = ()
    out: View
    weight: str


class Linear(Struct, frozen=True):
    """out = (x · weightᵀ + bias) * scale; with `accumulate`, out = out + that. x is a whole buffer."""

    kind: ClassVar[str] = "linear"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View
    weight: str
    bias: str | None = None
    accumulate: bool = False
    scale: float = 1.0


class Norm(Struct, frozen=True):
    """RMS norm of the whole view, or of each head by itself."""

    kind: ClassVar[str] = "norm"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View
    weight: str
    eps: float
    per_head: bool = False


class Rope(Struct, frozen=True):
    """Rotate-half by position, on the first `rotary` columns of each head; in place where out is x."""

    kind: ClassVar[str] = "rope"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View
    cos: str
    sin: str
    rotary: int


class KVWrite(Struct, frozen=True):
    """K and V of the step's tokens into the cache."""

    kind: ClassVar[str] = "kv_write"
    reads: ClassVar[tuple[str, ...]] = ("k", "v")
    k: View
    v: View
    group: int
    layer: int


class Attend(Struct, frozen=True):
    """Causal attention of q over the cache, read through the block table; behind the group's window where it has one.

    Scores become `softcap * tanh(score / softcap)` where softcap is above 0.
    """

    kind: ClassVar[str] = "attend"
    reads: ClassVar[tuple[str, ...]] = ("q",)
    q: View
    out: View
    group: int
    layer: int
    scale: float
    softcap: float = 0.0


ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Act.fn, in the native interface's order. gelu is x·Φ(x), gelu_tanh its usual approximation."""


class Act(Struct, frozen=True):
    """fn(gate) * up; `fn` is one of ACTIVATIONS."""

    kind: ClassVar[str] = "act"
    reads: ClassVar[tuple[str, ...]] = ("gate", "up")
    gate: View
    up: View
    out: View
    fn: str = "silu"


class Add(Struct, frozen=True):
    """out = a + b * scale; out may be a or b."""

    kind: ClassVar[str] = "add"
    reads: ClassVar[tuple[str, ...]] = ("a", "b")
    a: View
    b: View
    out: View
    scale: float = 1.0


class Scale(Struct, frozen=True):
    """out = x * factor, then `softcap * tanh(that / softcap)` where softcap is above 0; out may be x."""

    kind: ClassVar[str] = "scale"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View
    factor: float
    softcap: float = 0.0


class Gather(Struct, frozen=True):
    """out[r] = x[row[r]]: the rows whose logits are wanted."""

    kind: ClassVar[str] = "gather"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View


class Head(Struct, frozen=True):
    """Logits: out[r] = x[r] · weightᵀ, f32."""

    kind: ClassVar[str] = "head"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View
    weight: str


class Route(Struct, frozen=True):
    """The experts of each token: ids[t] = the k largest of x[t], largest first, ties to the lower; out[t] = weights.

    weights = factor * softmax of x, over all experts (taken at the k) or, with `norm`, over the k alone. Softmax keeps
    order, so "softmax, then top-k, then divide by their sum" and "top-k, then softmax" are both `norm`.
    """

    kind: ClassVar[str] = "route"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    ids: View
    """i32 [T, k]."""
    out: View
    """f32 [T, k]."""
    norm: bool
    factor: float


class ExpertLinear(Struct, frozen=True):
    """out[t * k + j] = weight[ids[t, j]] · x[t], or · x[t * k + j] where x has a row for each of a token's experts."""

    kind: ClassVar[str] = "expert_linear"
    reads: ClassVar[tuple[str, ...]] = ("x", "ids")
    x: View
    ids: View
    out: View
    weight: str
    experts: int


class Combine(Struct, frozen=True):
    """out[t] = Σ_j weights[t, j] * x[t * k + j], in order of j."""

    kind: ClassVar[str] = "combine"
    reads: ClassVar[tuple[str, ...]] = ("x", "weights")
    x: View
    weights: View
    out: View


class Cast(Struct, frozen=True):
    """x in out's dtype, rounded once. Only lowering makes these."""

    kind: ClassVar[str] = "cast"
    reads: ClassVar[tuple[str, ...]] = ("x",)
    x: View
    out: View


DeviceOp: TypeAlias = (
    Embed
    | Linear
    | Norm
    | Rope
    | KVWrite
    | Attend
    | Act
    | Add
    | Scale
    | Gather
    | Head
    | Route
    | ExpertLinear
    | Combine
    | Cast
)
OUTPUTS: Mapping[str, tuple[str, ...]] = {"kv_write": (), "route": ("ids", "out")}
"""Fields that an op of a kind fills, where they are not `out`."""


class Host(Struct, frozen=True):
    """An op the backend lacks: the Executable is cut here and the reference computes it."""

    kind: ClassVar[str] = "host"
    op: DeviceOp


Op: TypeAlias = DeviceOp | Host


def inner(op: Op) -> DeviceOp:
    """The op itself, out of its host wrapper."""
    return op.op if isinstance(op, Host) else op


def reads(op: Op) -> list[View]:
    """Views whose old values the op needs."""
    op = inner(op)
    views: list[View] = [getattr(op, name) for name in op.reads]
    if isinstance(op, Linear) and op.accumulate:
        views.append(op.out)
    return views


def writes(op: Op) -> list[View]:
    """Views the op fills."""
    op = inner(op)
    return [getattr(op, name) for name in OUTPUTS.get(op.kind, ("out",))]


def weights_of(op: Op) -> list[str]:
    """Names of the weights the op reads."""
    op = inner(op)
    names = [getattr(op, field, None) for field in ("weight", "bias", "cos", "sin")]
    return [name for name in names if name is not None]


def views_of(op: DeviceOp) -> dict[str, View]:
    """Every view field of the op."""
    return {name: getattr(op, name) for name in (*op.reads, *OUTPUTS.get(op.kind, ("out",)))}


def with_views(op: DeviceOp, change: Mapping[str, View]) -> DeviceOp:
    """The op with some of its view fields replaced."""
    return replace(op, **change)


class Segment(Struct, frozen=True):
    """Ops [first, end)."""

    name: str
    first: int
    end: int


class Program(Struct, frozen=True):
    """A model's meaning. Made by Builder.build, which validates it."""

    name: str
    vocab_size: int
    max_len: int
    """Longest sequence the config states; what is served unless more is asked for."""
    buffers: tuple[Buffer, ...]
    weights: Mapping[str, Weight]
    groups: tuple[KVGroup, ...]
    ops: tuple[DeviceOp, ...]
    segments: tuple[Segment, ...]
    logits: int
    """The buffer of the head's output."""
    reach: int = 0
    """Longest sequence that may be asked for: kinds of rope stretch beyond max_len."""
    ignored: frozenset[str] = frozenset()
    """Tensors that a checkpoint may hold and this model has no use for."""

    def validate(self) -> None:
        """Assert that views lie in their buffers, shapes agree, and nothing is read before it is written."""
        assert len({(g.places or g.layers, g.kv_heads, g.head_dim) for g in self.groups}) <= 1, "blocks differ in bytes"
        assert all(g.window is None or g.window > 0 for g in self.groups), "a window"
        written = [np.zeros(b.width, bool) for b in self.buffers]
        for i, op in enumerate(self.ops):
            where = f"op {i} ({op.kind})"
            for view in reads(op):
                self._inside(view, where)
                for first, end in view.spans():
                    gap = ~written[view.buffer][first:end]
                    assert not gap.any(), f"{where} reads unwritten columns of {self.buffers[view.buffer].name}"
            for view in writes(op):
                self._inside(view, where)
                for first, end in view.spans():
                    written[view.buffer][first:end] = True
            self._shapes(op, where)
        assert written[self.logits].all(), "the head never wrote the logits"
        at = 0
        for segment in self.segments:
            assert segment.first == at and segment.end > at, f"segment {segment.name} leaves a gap or is empty"
            at = segment.end
        assert at == len(self.ops), "ops outside every segment"

    def _inside(self, view: View, where: str) -> None:
        buffer = self.buffers[view.buffer]
        ok = view.heads > 0 and view.width > 0 and view.offset >= 0 and view.end <= buffer.width
        assert ok and (view.heads == 1 or view.stride >= view.width), f"{where}: {view} leaves {buffer}"

    def _shapes(self, op: DeviceOp, where: str) -> None:
        self._row_counts(op, where)
        for name in weights_of(op):
            assert name in self.weights, f"{where}: weight {name} is not declared"
        match op:
            case Embed(out=out, weight=w):
                ok = self.weights[w].k == out.columns and self.weights[w].lookup
            case Linear(x=x, out=out, weight=w, bias=bias):
                ok = (self.weights[w].n, self.weights[w].k) == (out.columns, x.columns) and self._whole(x)
                ok = ok and (bias is None or self.weights[bias].n == out.columns)
            case Head(x=x, out=out, weight=w):
                ok = (self.weights[w].n, self.weights[w].k) == (out.columns, x.columns)
                ok = ok and self._whole(x) and self._whole(out)
            case Norm(x=x, out=out, weight=w, per_head=per_head):
                ok = x.columns == out.columns and self.weights[w].n == (x.width if per_head else x.columns)
            case Rope(x=x, out=out, cos=cos, sin=sin, rotary=rotary):
                ok = (x.heads, x.width) == (out.heads, out.width) and rotary <= x.width and rotary % 2 == 0
                ok = ok and self.weights[cos].k == self.weights[sin].k == rotary // 2
            case KVWrite(k=k, v=v, group=g, layer=layer):
                shape = (self.groups[g].kv_heads, self.groups[g].head_dim)
                ok = (k.heads, k.width) == (v.heads, v.width) == shape and 0 <= layer < self.groups[g].layers
            case Attend(q=q, out=out, group=g, layer=layer, scale=scale):
                ok = (q.heads, q.width) == (out.heads, out.width) and q.width == self.groups[g].head_dim
                ok = ok and q.heads % self.groups[g].kv_heads == 0 and 0 <= layer < self.groups[g].layers
                ok = ok and math.isfinite(scale) and math.isfinite(op.softcap) and op.softcap >= 0
            case Act(gate=a, up=b, out=out, fn=fn):
                ok = a.columns == b.columns == out.columns and fn in ACTIVATIONS
            case Add(a=a, b=b, out=out):
                ok = a.columns == b.columns == out.columns
            case Scale(x=x, out=out, factor=factor, softcap=cap):
                ok = x.columns == out.columns and math.isfinite(factor) and math.isfinite(cap) and cap >= 0
            case Gather(x=x, out=out) | Cast(x=x, out=out) | Combine(x=x, out=out):
                ok = x.columns == out.columns
            case Route(x=x, ids=ids, out=out):
                ok = ids.columns == out.columns <= x.columns and self.buffers[ids.buffer].dtype == "i32"
                ok = ok and self._whole(ids) and self._whole(out) and self.buffers[out.buffer].dtype == "f32"
            case ExpertLinear(x=x, ids=ids, out=out, weight=w, experts=experts):
                ok = (self.weights[w].n, self.weights[w].k) == (out.columns, x.columns)
                ok = ok and self.weights[w].experts == experts and all(self._whole(v) for v in (x, ids, out))
        assert ok, f"{where}: shapes disagree: {op}"

    def _row_counts(self, op: DeviceOp, where: str) -> None:
        """Assert that the buffers of an op have the rows that go together."""
        counts = {name: (self.buffers[v.buffer].rows, self.buffers[v.buffer].times) for name, v in views_of(op).items()}
        match op:
            case Gather():
                ok = counts == {"x": (Rows.T, 1), "out": (Rows.R, 1)}
            case ExpertLinear(ids=ids):
                rows, _ = counts["ids"]
                ok = counts["ids"] == (rows, 1) and counts["out"] == (rows, ids.columns)
                ok = ok and counts["x"] in ((rows, 1), (rows, ids.columns))
            case Combine(weights=weights):
                rows, _ = counts["out"]
                ok = counts == {"x": (rows, weights.columns), "weights": (rows, 1), "out": (rows, 1)}
            case _:
                ok = len(set(counts.values())) == 1
        assert ok, f"{where}: rows {counts}"

    def _whole(self, view: View) -> bool:
        return view.offset == 0 and view.columns == self.buffers[view.buffer].width
