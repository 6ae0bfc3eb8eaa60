"""Feed-forward layers."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.nn.linear import Linear
from octavo.program.ir import View


class GatedMLP:
    """down(silu(gate(x)) * up(x)), gate and up in one linear."""

    def __init__(self, b: Build, width: int, inner: int, *, bias: bool = False) -> None:
        self._builder = b.builder
        self._name = b.name("act")
        self._gate_up = Linear(b, width, parts={"gate_proj": inner, "up_proj": inner}, split="out", bias=bias)
        self._down = Linear(b, inner, parts={"down_proj": width}, split="in", bias=bias)

    def __call__(self, x: View) -> View:
        gate, up = self._gate_up.pieces(self._gate_up(x))
        return self._down(self._builder.act(gate, up, name=self._name))
