"""Mixture of experts: a router chooses k of E feed-forward layers for each token and weighs what they say."""

from __future__ import annotations

from msgspec import Struct

from octavo.nn.build import Build
from octavo.nn.linear import Linear
from octavo.program.ir import View


class ExpertsShape(Struct, frozen=True, kw_only=True):
    """What the sparse layers of a model share."""

    experts: int
    chosen: int
    """Experts of each token."""
    inner: int
    """Width inside an expert."""
    norm: bool
    """The chosen experts' weights add up to 1; else they are shares of all experts' softmax."""
    router: str = "gate"
    """Checkpoint names: the router, and each expert's three linears."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class SparseMLP:
    """Σ over a token's experts of weight · down(silu(gate(x)) * up(x)); experts are `{prefix}.experts.N.…`."""

    def __init__(self, b: Build, width: int, shape: ExpertsShape) -> None:
        self._builder = b.builder
        self._shape = shape
        self._place = b
        self._router = Linear(b, width, parts={shape.router: shape.experts}, precise=True)
        experts = [b.sub("experts").sub(i) for i in range(shape.experts)]
        declare, inner = b.builder.expert_weight, shape.inner
        gate_up = [{e.name(f"{part}.weight"): inner for part in (shape.gate, shape.up)} for e in experts]
        down = [{e.name(f"{shape.down}.weight"): width} for e in experts]
        self._gate_up = declare(b.name(f"experts.({shape.gate}+{shape.up})"), gate_up, width)
        self._down = declare(b.name(f"experts.{shape.down}"), down, inner)

    def __call__(self, x: View) -> View:
        """[T, width] to [T, width]."""
        builder, shape, name = self._builder, self._shape, self._place.name
        logits = self._router(x)
        ids, weights = builder.route(logits, shape.chosen, norm=shape.norm, factor=1.0, name=name("route"))
        y = builder.expert_linear(x, ids, self._gate_up, name=name("experts.in"))
        gate, up = y.part(0, shape.inner), y.part(shape.inner, shape.inner)
        y = builder.expert_linear(builder.act(gate, up, name=name("act")), ids, self._down, name=name("experts.out"))
        return builder.combine(y, weights, name=name("combine"))
