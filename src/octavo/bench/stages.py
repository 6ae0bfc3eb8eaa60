"""What the native executable's stages are: its timings name kinds and shapes, the spec knows ops and weights."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from octavo.program.executable import ExecutableSpec
from octavo.program.ir import DeviceOp, Host, inner

MATMULS = {"linear": ("linear", "head"), "experts": ("expert_linear",)}
"""First word of a stage's name -> kinds of op it can be."""
WITHOUT_OP = ("sort", "cast")
"""Stages (and row ops) that the executable adds on its own."""


class Stage(Struct, frozen=True):
    """One stage: what it is called here, and the ops it runs in their order."""

    label: str
    ops: tuple[DeviceOp, ...]
    format: str
    """Execution format of its weight; "" without one."""


def match(spec: ExecutableSpec, names: Sequence[str]) -> list[Stage]:
    """The stages of `Executable.timings()` in order, with the ops of `spec` that each covers.

    A matmul is labelled by its weight without the layer's number, so that the same op of all layers has one label.
    """
    ops = [inner(op) for op in spec.ops if not isinstance(op, Host)]
    formats = {w.weight.name: w.format for w in spec.weights}
    stages: list[Stage] = []
    at = 0
    for name in names:
        first = name.partition(" ")[0]
        taken: list[DeviceOp] = []
        for kind in [first] if first in MATMULS else first.split("+"):
            if at < len(ops) and ops[at].kind in MATMULS.get(kind, (kind,)):
                taken.append(ops[at])
                at += 1
            else:
                assert kind in WITHOUT_OP, f"stage {name!r} has no op, the next is {ops[at : at + 1]}"
        weight = getattr(taken[0], "weight", "") if taken and first in MATMULS else ""
        label = f"{taken[0].kind} {_short(weight)}" if weight else name
        stages.append(Stage(label, tuple(taken), formats.get(weight, "")))
    assert at == len(ops), f"{len(ops) - at} ops belong to no stage"
    return stages


def _short(weight: str) -> str:
    """The last two parts of a checkpoint name, numbers left out."""
    parts = re.sub(r"\.\d+(?=\.|$)", "", weight.removesuffix(".weight")).split(".")
    return ".".join(parts[-2:])
