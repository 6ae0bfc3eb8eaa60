"""Normalisation layers."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.program.ir import View


class RMSNorm:
    """y = x / sqrt(mean(x²) + eps) * (weight + offset), over the row, or over each head of a view.

    `offset` is folded into the weight at load: 1 for families whose checkpoints store w and compute with 1 + w.
    """

    def __init__(
        self,
        b: Build,
        width: int,
        *,
        eps: float,
        per_head: bool = False,
        in_place: bool = False,
        offset: float = 0.0,
    ) -> None:
        """`in_place`: the normed numbers replace x (a norm per head always does)."""
        self._builder = b.builder
        self._name = b.prefix
        self._eps = eps
        self._per_head = per_head
        self._in_place = in_place
        self._weight = b.builder.vector({b.name("weight"): width}, offset=offset)

    def __call__(self, x: View) -> View:
        return self._builder.norm(
            x, self._weight, eps=self._eps, name=self._name, per_head=self._per_head, in_place=self._in_place
        )
