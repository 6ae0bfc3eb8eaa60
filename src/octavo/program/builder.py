"""Builder: what a model file's Python runs against, once and without weights, to leave a Program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from octavo.program.balance import Balance
from octavo.program.deal import deal
from octavo.program.ir import (
    Act,
    Add,
    Attend,
    Buffer,
    Combine,
    DeviceOp,
    Embed,
    ExpertLinear,
    Gather,
    Head,
    KVGroup,
    KVWrite,
    Linear,
    Norm,
    Part,
    Program,
    Rope,
    Route,
    Rows,
    Scale,
    Segment,
    View,
    Weight,
)
from octavo.program.rope import RopeSpec


class Builder:
    """Collects buffers, weights and ops in order. Each method that computes returns the view it wrote.

    Declaring a weight twice under one name gives the same weight: a tied head costs nothing.
    """

    def __init__(self, name: str, *, vocab_size: int, max_len: int) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self.max_len = max_len
        self._buffers: list[Buffer] = []
        self._weights: dict[str, Weight] = {}
        self._groups: list[KVGroup] = []
        self._ops: list[DeviceOp] = []
        self._segments: list[Segment] = []
        self._logits: int | None = None
        self._ignored: set[str] = set()
        self._reach: list[int] = []

    # -- declarations -------------------------------------------------------------------------------------------------
    def buffer(
        self,
        name: str,
        width: int,
        *,
        rows: Rows = Rows.T,
        dtype: str | None = None,
        port: bool = False,
        times: int = 1,
    ) -> View:
        """A new buffer, as the view of all its columns."""
        self._buffers.append(Buffer(name, rows, width, dtype, port, times))
        return View(len(self._buffers) - 1, 0, 1, width, width)

    def linear_weight(self, parts: Mapping[str, int], k: int, *, careful: bool = False, precise: bool = False) -> str:
        """A matrix [sum of rows, k] filled by the tensors of `parts` (name -> rows), one below the other."""
        name = joined_name(list(parts))
        weight = Weight(name, "linear", sum(parts.values()), k, _parts(parts), careful=careful, precise=precise)
        self._declare(weight)
        return name

    def expert_weight(self, name: str, experts: Sequence[Mapping[str, int]], k: int) -> str:
        """Matrices [sum of rows, k] of one shape, one for each of `experts`, each filled as a linear_weight is."""
        (n,) = {sum(parts.values()) for parts in experts}
        parts = tuple(part for expert in experts for part in _parts(expert))
        self._declare(Weight(name, "linear", n, k, parts, experts=len(experts)))
        return name

    def vector(self, parts: Mapping[str, int], *, offset: float = 0.0) -> str:
        """An f32 vector filled by the tensors of `parts` (name -> elements), `offset` added to each element."""
        name = joined_name(list(parts))
        self._declare(Weight(name, "vec", sum(parts.values()), 1, _parts(parts), offset))
        return name

    def key_balance(self, bias: Mapping[str, int], balance: Balance) -> str:
        """The factors of an int8 cache's keys whose bias the tensors of `bias` hold (name -> elements)."""
        name = f"{joined_name(list(bias))}.balance"
        self._declare(Weight(name, "vec", sum(bias.values()), 1, _parts(bias), balance=balance))
        return name

    def rope_tables(self, spec: RopeSpec) -> tuple[str, str]:
        """Names of the cos and sin tables of `spec`; one pair however often it is asked for."""
        base = spec.name
        self._reach.append(spec.reach(self.max_len))
        for which in ("cos", "sin"):
            weight = Weight(f"{base}.{which}", "table", self.max_len, spec.rotary // 2, table=(spec, which))
            self._declare(weight)
        return f"{base}.cos", f"{base}.sin"

    def kv_group(self, name: str, *, layers: int, kv_heads: int, head_dim: int) -> int:
        """A group of layers that share one block table; its index."""
        self._groups.append(KVGroup(name, layers, kv_heads, head_dim))
        return len(self._groups) - 1

    def kv_layers(self, kinds: Sequence[int | None], *, kv_heads: int, head_dim: int) -> list[tuple[int, int]]:
        """Deals layers to KV groups of equal blocks (deal.py). `kinds`: the window of each layer, None for none.

        Returns where each layer's keys and values go: (group, layer in the group).
        """
        found: dict[int, tuple[int, int]] = {}
        for number, dealt in enumerate(deal(kinds)):
            name = "full" if dealt.window is None else f"window {dealt.window}"
            name += f".{number}" if any(group.name == name for group in self._groups) else ""
            group = KVGroup(name, len(dealt.layers), kv_heads, head_dim, dealt.window, dealt.places)
            found.update({layer: (len(self._groups), place) for place, layer in enumerate(dealt.layers)})
            self._groups.append(group)
        return [found[layer] for layer in range(len(kinds))]

    def ignore(self, tensor: str) -> None:
        """A checkpoint may hold this tensor; the model has no use for it (any other that is left over is an error)."""
        self._ignored.add(tensor)

    @contextmanager
    def segment(self, name: str) -> Iterator[None]:
        """Ops emitted inside form the segment `name`."""
        first = len(self._ops)
        yield
        self._segments.append(Segment(name, first, len(self._ops)))

    # -- ops ----------------------------------------------------------------------------------------------------------
    def embed(self, weight: str, *, name: str) -> View:
        """Rows of `weight` by token: [T, k]. The residual stream: f32."""
        self._weights[weight] = replace(self._weights[weight], lookup=True)
        return self._emit(Embed(self.buffer(name, self._weights[weight].k, dtype="f32"), weight))

    def linear(self, x: View, weight: str, bias: str | None, *, name: str) -> View:
        out = self.buffer(name, self._weights[weight].n, rows=self._rows(x), times=self._times(x))
        return self._emit(Linear(x, out, weight, bias))

    def norm(
        self, x: View, weight: str, *, eps: float, name: str, per_head: bool = False, in_place: bool = False
    ) -> View:
        """RMS norm into a new buffer; in place where asked for, or where it is per head."""
        out = x if per_head or in_place else self.buffer(name, x.columns, rows=self._rows(x), times=self._times(x))
        return self._emit(Norm(x, out, weight, eps, per_head))

    def rope(self, x: View, spec: RopeSpec) -> View:
        """In place."""
        cos, sin = self.rope_tables(spec)
        return self._emit(Rope(x, x, cos, sin, spec.rotary))

    def kv_write(self, k: View, v: View, *, group: int, layer: int, balance: str | None = None) -> None:
        self._ops.append(KVWrite(k, v, group, layer, balance))

    def attend(
        self,
        q: View,
        *,
        group: int,
        layer: int,
        scale: float,
        name: str,
        softcap: float = 0.0,
        balance: str | None = None,
    ) -> View:
        """One flat view [T, heads * head_dim]. `softcap` of the scores; 0 for none. `balance` as kv_write's."""
        out = self.buffer(name, q.columns)
        self._ops.append(Attend(q, out.split(q.heads), group, layer, scale, softcap, balance))
        return out

    def act(self, gate: View, up: View, *, name: str, fn: str = "silu") -> View:
        """fn(gate) * up; `fn` is one of ir.ACTIVATIONS."""
        out = self.buffer(name, gate.columns, rows=self._rows(gate), times=self._times(gate))
        return self._emit(Act(gate, up, out, fn))

    def route(self, x: View, k: int, *, norm: bool, factor: float, name: str) -> tuple[View, View]:
        """The k experts of each row of logits x [T, E]: (ids i32 [T, k], weights f32 [T, k])."""
        ids = self.buffer(f"{name}.ids", k, rows=self._rows(x), dtype="i32")
        weights = self.buffer(f"{name}.weights", k, rows=self._rows(x), dtype="f32")
        self._ops.append(Route(x, ids, weights, norm, factor))
        return ids, weights

    def expert_linear(self, x: View, ids: View, weight: str, *, name: str) -> View:
        """Each row of x by the experts of its token: [k * T, n]. x: a row a token, or [k * T, k of the weight]."""
        w = self._weights[weight]
        out = self.buffer(name, w.n, rows=self._rows(ids), times=ids.columns)
        return self._emit(ExpertLinear(x, ids, out, weight, w.experts))

    def combine(self, x: View, weights: View, *, name: str) -> View:
        """[k * T, n] to [T, n]: each token's rows, weighed and added in routing order."""
        return self._emit(Combine(x, weights, self.buffer(name, x.columns, rows=self._rows(weights))))

    def add_to(self, stream: View, y: View, *, scale: float = 1.0) -> View:
        """stream += y * scale."""
        return self._emit(Add(stream, y, stream, scale))

    def scale(self, x: View, factor: float, *, softcap: float = 0.0) -> View:
        """In place: x *= factor, then softcap * tanh(x / softcap) where there is a softcap."""
        return x if factor == 1.0 and not softcap else self._emit(Scale(x, x, factor, softcap))

    def gather(self, x: View, *, name: str) -> View:
        """The rows whose logits are wanted: [R, width]."""
        return self._emit(Gather(x, self.buffer(name, x.columns, rows=Rows.R)))

    def head(self, x: View, weight: str) -> View:
        """Logits, f32 [R, vocab]; outlive the step."""
        out = self.buffer("logits", self._weights[weight].n, rows=Rows.R, dtype="f32", port=True)
        self._logits = out.buffer
        return self._emit(Head(x, out, weight))

    def build(self) -> Program:
        """The finished Program, validated."""
        assert self._logits is not None, "no head was built"
        program = Program(
            name=self.name,
            vocab_size=self.vocab_size,
            max_len=self.max_len,
            buffers=tuple(self._buffers),
            weights=dict(self._weights),
            groups=tuple(self._groups),
            ops=tuple(self._ops),
            segments=tuple(self._segments),
            logits=self._logits,
            reach=min(self._reach, default=self.max_len),
            ignored=frozenset(self._ignored),
        )
        program.validate()
        return program

    # -- inside -------------------------------------------------------------------------------------------------------
    def _declare(self, weight: Weight) -> None:
        known = self._weights.get(weight.name)
        if known is None:
            self._weights[weight.name] = weight
        else:
            assert replace(weight, lookup=known.lookup) == known, f"{weight.name} is declared twice, differently"

    def _rows(self, view: View) -> Rows:
        return self._buffers[view.buffer].rows

    def _times(self, view: View) -> int:
        return self._buffers[view.buffer].times

    def _emit(
        self, op: Embed | Linear | Norm | Rope | Act | Add | Scale | Gather | Head | ExpertLinear | Combine
    ) -> View:
        self._ops.append(op)
        return op.out


def _parts(parts: Mapping[str, int]) -> tuple[Part, ...]:
    return tuple(Part(tensor, rows) for tensor, rows in parts.items())


def joined_name(tensors: list[str]) -> str:
    """One tensor keeps its name; joined ones share their prefix: `…self_attn.(q_proj+k_proj+v_proj).weight`."""
    if len(tensors) == 1:
        return tensors[0]
    split = [t.rsplit(".", 2) for t in tensors]
    assert len({(prefix, leaf) for prefix, _, leaf in split}) == 1, tensors
    return f"{split[0][0]}.({'+'.join(middle for _, middle, _ in split)}).{split[0][2]}"
