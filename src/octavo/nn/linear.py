"""Linear layers: one class, whatever is joined, sharded or quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octavo.nn.build import Build
from octavo.program.ir import View

Split = Literal["out", "in"]


class Linear:
    """y = x · Wᵀ (+ bias), W joined from the checkpoint's `parts`.

    `Linear(b, 576, parts={"q_proj": 576, "k_proj": 192, "v_proj": 192}, split="out")` is one matmul over three tensors;
    `pieces(y)` are their columns of the result, so nothing is split or copied.
    `fused`: the checkpoint holds the parts joined already, in one tensor of this name.
    `careful` has --quantization int4 give it 8 bits. `precise` keeps it from --quantization (routers).
    `split` says along which side a tensor-parallel group would cut it ("out": columns of y, "in": columns of x).
    """

    def __init__(
        self,
        b: Build,
        n_in: int,
        *,
        parts: Mapping[str, int],
        split: Split | None = None,
        bias: bool = False,
        fused: str | None = None,
        careful: bool = False,
        precise: bool = False,
    ) -> None:
        self._builder = b.builder
        stored = {fused: sum(parts.values())} if fused else parts
        self._name = b.name("+".join(stored))
        self.parts = dict(parts)
        self.split = split
        tensors = {b.name(f"{p}.weight"): n for p, n in stored.items()}
        self.weight = b.builder.linear_weight(tensors, n_in, careful=careful, precise=precise)
        self.bias = b.builder.vector({b.name(f"{p}.bias"): n for p, n in stored.items()}) if bias else None

    def __call__(self, x: View) -> View:
        """[rows, n_in] to [rows, sum of parts]."""
        return self._builder.linear(x, self.weight, self.bias, name=self._name)

    def pieces(self, y: View) -> list[View]:
        """The columns of each part of `y`."""
        views, offset = [], 0
        for width in self.parts.values():
            views.append(y.part(offset, width))
            offset += width
        return views
