"""Normalisation layers."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.program.ir import View


class RMSNorm:
    """y = x / sqrt(mean(x²) + eps) * weight, over the row (or over each head of a view, in place)."""

    def __init__(self, b: Build, width: int, *, eps: float, per_head: bool = False) -> None:
        self._builder = b.builder
        self._name = b.prefix
        self._eps = eps
        self._per_head = per_head
        self._weight = b.builder.vector({b.name("weight"): width})

    def __call__(self, x: View) -> View:
        return self._builder.norm(x, self._weight, eps=self._eps, name=self._name, per_head=self._per_head)
