"""Feed-forward layers."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.nn.linear import Linear
from octavo.program.ir import View


class GatedMLP:
    """down(fn(gate(x)) * up(x)), gate and up in one linear. `fn`: one of ir.ACTIVATIONS."""

    def __init__(
        self, b: Build, width: int, inner: int, *, bias: bool = False, fn: str = "silu", fused: str | None = None
    ) -> None:
        """`fused`: the one tensor that holds gate, then up, in checkpoints that join them."""
        self._builder = b.builder
        self._name = b.name("act")
        self._fn = fn
        parts = {"gate_proj": inner, "up_proj": inner}
        self._gate_up = Linear(b, width, parts=parts, split="out", bias=bias, fused=fused)
        self._down = Linear(b, inner, parts={"down_proj": width}, split="in", bias=bias, careful=True)

    def __call__(self, x: View) -> View:
        gate, up = self._gate_up.pieces(self._gate_up(x))
        return self._down(self._builder.act(gate, up, name=self._name, fn=self._fn))
