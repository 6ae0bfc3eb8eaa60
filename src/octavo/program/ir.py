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
from collections.abc import Container, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.facts import kind_of
from octavo.program.balance import Balance
from octavo.program.ops import ACTIVATIONS as ACTIVATIONS
from octavo.program.ops import OUTPUTS as OUTPUTS
from octavo.program.ops import Act as Act
from octavo.program.ops import Add as Add
from octavo.program.ops import Attend as Attend
from octavo.program.ops import Cast as Cast
from octavo.program.ops import Combine as Combine
from octavo.program.ops import DeviceOp as DeviceOp
from octavo.program.ops import Embed as Embed
from octavo.program.ops import ExpertLinear as ExpertLinear
from octavo.program.ops import Gather as Gather
from octavo.program.ops import Head as Head
from octavo.program.ops import Host as Host
from octavo.program.ops import KVWrite as KVWrite
from octavo.program.ops import Linear as Linear
from octavo.program.ops import Norm as Norm
from octavo.program.ops import Op as Op
from octavo.program.ops import Rope as Rope
from octavo.program.ops import Route as Route
from octavo.program.ops import Scale as Scale
from octavo.program.ops import View as View
from octavo.program.ops import inner as inner
from octavo.program.ops import reads as reads
from octavo.program.ops import views_of as views_of
from octavo.program.ops import weights_of as weights_of
from octavo.program.ops import with_views as with_views
from octavo.program.ops import writes as writes
from octavo.program.rope import RopeSpec

DTYPES = ("f32", "bf16", "q8", "q8t", "i32")
"""Buffer dtypes. q8: int8 codes with a scale and a sum per group of 32 columns; q8t: of a row (docs/numerics.md)."""


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
    balance: Balance | None = None
    """Makes the vec out of what its parts hold: the factors of an int8 cache's keys."""
    table: tuple[RopeSpec, str] | None = None
    """(rope, "cos" or "sin")."""
    lookup: bool = False
    """An op reads single rows out of it (embed); it may feed the head as well."""
    experts: int = 1
    """Matrices [n, k] of one shape, packed one after another at a constant stride; `parts` fill expert after expert."""
    careful: bool = False
    """Given 8 bits by --quantization int4: rounding it costs most (decisions/0012)."""
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
        return kind_of(self.window)


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
                ok = ok and (op.balance is None or self.weights[op.balance].n == k.columns)
            case Attend(q=q, out=out, group=g, layer=layer, scale=scale):
                ok = (q.heads, q.width) == (out.heads, out.width) and q.width == self.groups[g].head_dim
                ok = ok and q.heads % self.groups[g].kv_heads == 0 and 0 <= layer < self.groups[g].layers
                ok = ok and math.isfinite(scale) and math.isfinite(op.softcap) and op.softcap >= 0
                columns = self.groups[g].kv_heads * q.width
                ok = ok and (op.balance is None or self.weights[op.balance].n == columns)
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
