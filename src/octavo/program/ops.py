"""The ops of a Program, and the views of buffers that they read and fill. What may be computed is this list.

A new op is a class here, a row of kernels.OPS, a function of the reference and a kernel; ir.py checks its shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeAlias

from msgspec import Struct
from msgspec.structs import replace


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
    balance: str | None = None
    """What an int8 cache divides k by (program/balance.py); attend multiplies q with the same."""


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
    balance: str | None = None
    """Factors of q where the cache is int8, as KVWrite's."""


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
    names = [getattr(op, field, None) for field in ("weight", "bias", "cos", "sin", "balance")]
    return [name for name in names if name is not None]


def views_of(op: DeviceOp) -> dict[str, View]:
    """Every view field of the op."""
    return {name: getattr(op, name) for name in (*op.reads, *OUTPUTS.get(op.kind, ("out",)))}


def with_views(op: DeviceOp, change: Mapping[str, View]) -> DeviceOp:
    """The op with some of its view fields replaced."""
    return replace(op, **change)
