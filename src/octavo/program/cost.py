"""What a step costs: floating-point operations and bytes moved by each op, from sizes alone.

Feeds `octavo explain`, the roofline report and budgets. A multiply-add counts as two operations; bytes are those that
must come from or go to memory once: weights, K and V, and activations, as if nothing stayed in a cache.
"""

from __future__ import annotations

from msgspec import Struct

from octavo.program.executable import ExecutableSpec, row_bytes
from octavo.program.ir import (
    Attend,
    Combine,
    Embed,
    ExpertLinear,
    Head,
    KVWrite,
    Linear,
    Norm,
    Op,
    Rope,
    View,
    inner,
    reads,
    writes,
)
from octavo.quant.table import FORMATS

NORM_FLOPS = 4
"""A column: square, add, scale, weigh."""
ACT_FLOPS = 12
"""A column of silu(gate) * up with the polynomial exp."""
ROPE_FLOPS = 3
"""A column: half of two products and a sum, twice."""


class Step(Struct, frozen=True):
    """A step's shape: tokens in all, logit rows, sequences, and positions in the cache of each sequence after it."""

    tokens: int
    rows: int
    seqs: int
    context: int

    @classmethod
    def decode(cls, seqs: int, context: int) -> Step:
        """One token each."""
        return cls(seqs, seqs, seqs, context)

    @classmethod
    def prefill(cls, tokens: int) -> Step:
        """One prompt, whole."""
        return cls(tokens, 1, 1, tokens)

    def count(self, rows: str) -> int:
        return {"T": self.tokens, "R": self.rows, "B": self.seqs}[rows]

    def touched(self, experts: int, chosen: int) -> float:
        """Experts that some token visits, on average, where routers spread their choices evenly."""
        return experts * (1 - (1 - chosen / experts) ** self.tokens)

    def visible(self, window: int | None = None) -> int:
        """Keys seen, summed over the tokens: each sees itself and what is before it, behind a window less."""
        each = self.tokens // self.seqs
        total = each * self.context - each * (each - 1) // 2
        if window is not None:
            long = min(each, max(0, self.context - window))  # tokens that would see more than the window
            total -= long * (self.context - window) - long * (long - 1) // 2
        return self.seqs * total

    def read(self, window: int | None = None) -> int:
        """Positions of K and V that some token sees, over all sequences."""
        each = self.tokens // self.seqs
        return self.seqs * (self.context if window is None else min(self.context, window - 1 + each))


class Cost(Struct, frozen=True):
    """flops: operations. weights, kv, activations: bytes."""

    flops: int = 0
    weights: int = 0
    kv: int = 0
    activations: int = 0

    @property
    def bytes(self) -> int:
        return self.weights + self.kv + self.activations

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.weights + other.weights,
            self.kv + other.kv,
            self.activations + other.activations,
        )


def op_cost(spec: ExecutableSpec, op: Op, step: Step) -> Cost:
    """Of one op in one step."""
    op = inner(op)
    moved = sum(_view_bytes(spec, v, step) for v in [*reads(op), *writes(op)])
    if isinstance(op, Embed):
        weight = spec.program.weights[op.weight]
        row = FORMATS[_format(spec, op.weight)].storage_bytes(16, weight.k) // 16
        return Cost(flops=2 * step.tokens * weight.k, weights=step.tokens * row, activations=moved)
    if isinstance(op, Linear | Head):
        weight = spec.program.weights[op.weight]
        count = step.count(spec.buffers[op.x.buffer].rows)
        extra = 4 * weight.n if isinstance(op, Linear) and op.bias else 0
        size = FORMATS[_format(spec, op.weight)].storage_bytes(weight.n, weight.k) + extra
        # A step without a logit row runs no head.
        return Cost(2 * count * weight.n * weight.k, size if count else 0, 0, moved)
    if isinstance(op, ExpertLinear):
        weight = spec.program.weights[op.weight]
        size = FORMATS[_format(spec, op.weight)].storage_bytes(weight.n, weight.k)
        read = round(step.touched(op.experts, op.ids.columns) * size)
        return Cost(2 * step.tokens * op.ids.columns * weight.n * weight.k, read, 0, moved)
    if isinstance(op, Combine):
        return Cost(flops=2 * step.tokens * op.weights.columns * op.out.columns, activations=moved)
    if isinstance(op, KVWrite):
        return Cost(kv=step.tokens * spec.kv[op.group].position_bytes, activations=moved)
    if isinstance(op, Attend):
        group = spec.kv[op.group]
        seen, read = step.visible(group.window), step.read(group.window)
        return Cost(flops=4 * seen * op.q.columns, kv=read * group.position_bytes, activations=moved)
    out = spec.buffers[writes(op)[0].buffer]
    columns = writes(op)[0].columns * out.times * step.count(out.rows)
    each = {"norm": NORM_FLOPS, "act": ACT_FLOPS, "rope": ROPE_FLOPS, "add": 1, "scale": 1}.get(op.kind, 0)
    vectors = 4 * spec.program.weights[op.weight].n if isinstance(op, Norm) else 0
    tables = 8 * step.tokens * (op.rotary // 2) if isinstance(op, Rope) else 0
    return Cost(flops=each * columns, weights=vectors + tables, activations=moved)


def step_cost(spec: ExecutableSpec, step: Step) -> Cost:
    """Of all ops."""
    return sum((op_cost(spec, op, step) for op in spec.ops), Cost())


def _view_bytes(spec: ExecutableSpec, view: View, step: Step) -> int:
    buffer = spec.buffers[view.buffer]
    whole = row_bytes(buffer.dtype, buffer.width)
    return step.count(buffer.rows) * buffer.times * whole * view.columns // buffer.width


def _format(spec: ExecutableSpec, name: str) -> str:
    return next(w.format for w in spec.weights if w.weight.name == name)
