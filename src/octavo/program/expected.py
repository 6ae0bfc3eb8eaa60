"""What the parts of a step are expected to take on a machine of a kind, before one was measured: cost over usual rates.

The rates are rough on purpose. They make the first steps of a fresh server behave, and fix the ratio of what a model
spends on tokens, logits and keys; the steps that run correct them (sched/pace.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from octavo.facts import StepCost
from octavo.program.cost import Cost, Step, op_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.ir import Attend, Head, inner


class Rates(Struct, frozen=True, kw_only=True):
    """Of one thread."""

    ops: float
    """Operations a second in matrix products of many rows."""
    attend: float
    """Operations a second in attention."""
    read: float = 8e9
    """Bytes a second from memory."""


RATES: Mapping[str, Rates] = {
    "numpy": Rates(ops=5e9, attend=2e9, read=2e9),
    "scalar": Rates(ops=5e9, attend=2e9, read=4e9),
    "avx2": Rates(ops=1.5e11, attend=5e10),
    "avx512vnni": Rates(ops=5e11, attend=1e11),
    "avx512bf16": Rates(ops=5e11, attend=3e11),
}
"""By instruction set."""
CONTEXT = 1024
OVERHEAD = 2e-4
"""Seconds of a step outside its kernels."""


def expected_cost(spec: ExecutableSpec, *, isa: str, threads: int) -> StepCost:
    """Seconds by part, for a scheduler that plans in seconds."""
    rates = RATES.get(isa, RATES["avx2"])
    one, two, wide = Step(1, 1, 1, CONTEXT), Step(1, 2, 1, CONTEXT), Step(2, 1, 1, CONTEXT)
    fixed = token = row = keys = Cost()
    for op in spec.ops:
        first = op_cost(spec, op, one)
        real = inner(op)
        if isinstance(real, Attend):
            group = spec.kv[real.group]
            visible = one.visible(group.window)
            keys += Cost(flops=first.flops * CONTEXT // visible, kv=first.kv * CONTEXT // visible)
            continue
        fixed += Cost(weights=first.weights)
        row += Cost(flops=op_cost(spec, op, two).flops - first.flops)
        if not isinstance(real, Head):
            token += Cost(flops=op_cost(spec, op, wide).flops - first.flops)
    ops, attend, read = rates.ops * threads, rates.attend * threads, rates.read * threads
    return StepCost(
        step=OVERHEAD + fixed.weights / read,
        token=token.flops / ops,
        row=row.flops / ops,
        read=keys.kv / CONTEXT / read,
        seen=keys.flops / CONTEXT / attend,
    )
