"""The least time a step can take on a machine: each op's bytes over the bandwidth, or its operations over the peak.

Weights, K and V come from memory once a step; an op's activations only where they outgrow the last cache, else they are
free. So the sum is a bound from below for a model larger than that cache, and a measured step is at best equal to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from octavo.program.cost import Cost, Step, op_cost
from octavo.program.executable import ExecutableSpec
from octavo.program.ir import inner
from octavo.quant.table import FORMATS


class Machine(Struct, frozen=True, kw_only=True):
    """What the roof is made of."""

    read: float
    """Bytes a second from memory."""
    peaks: dict[str, float]
    """Execution format -> operations a second; "f32" for what has no weight."""
    cache_bytes: int = 0


class Line(Struct, frozen=True, kw_only=True):
    """All ops of a kind whose weights have one format."""

    kind: str
    format: str
    flops: int
    bytes: int
    """From or to memory."""
    seconds: float
    bound: str
    """memory, compute, or cache (only activations, which stay in it)."""


class Roofline(Struct, frozen=True, kw_only=True):
    step: Step
    lines: tuple[Line, ...]
    """The slowest first."""
    activations: bool
    """Whether activations of any op were counted as memory traffic."""

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    @property
    def flops(self) -> int:
        return sum(line.flops for line in self.lines)

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self.lines)


def weight_formats(spec: ExecutableSpec) -> dict[str, str]:
    """Execution formats of a model, f32 with them -> dtype of their activations."""
    names = {w.format for w in spec.weights if w.format in FORMATS} | {"f32"}
    return {name: FORMATS[name].activation for name in sorted(names)}


def roofline(spec: ExecutableSpec, step: Step, machine: Machine) -> Roofline:
    """The bound for one step; every format of `weight_formats` must have a peak."""
    formats = {w.weight.name: w.format for w in spec.weights}
    spills = False
    found: dict[tuple[str, str], list[tuple[Cost, int, float, float]]] = {}
    for op in spec.ops:
        form = formats.get(getattr(inner(op), "weight", ""), "")
        form = form if form in FORMATS else "f32"
        cost = op_cost(spec, op, step)
        spill = cost.activations > machine.cache_bytes
        spills |= spill
        moved = cost.bytes if spill else cost.weights + cost.kv
        times = (moved / machine.read, cost.flops / machine.peaks[form])
        found.setdefault((op.kind, form), []).append((cost, moved, *times))
    lines = [_line(kind, form, ops) for (kind, form), ops in found.items()]
    return Roofline(step=step, lines=tuple(sorted(lines, key=lambda line: -line.seconds)), activations=spills)


def _line(kind: str, form: str, ops: Iterable[tuple[Cost, int, float, float]]) -> Line:
    rows = list(ops)
    memory, compute = sum(r[2] for r in rows), sum(r[3] for r in rows)
    moved = sum(r[1] for r in rows)
    return Line(
        kind=kind,
        format=form,
        flops=sum(r[0].flops for r in rows),
        bytes=moved,
        seconds=sum(max(r[2], r[3]) for r in rows),
        bound="memory" if memory >= compute else "compute" if moved else "cache",
    )


def roofline_text(found: Roofline, machine: Machine, *, measured: float | None = None) -> str:
    """A table for people. Shares are those at the bound's own speed: 100 % is what binds. `measured`: seconds."""
    step, total = found.step, found.seconds
    lines = [
        f"Roofline of a step of {step.tokens} tokens in {step.seqs} sequences, context {step.context}",
        f"  memory {machine.read / 1e9:.1f} GB/s; peaks in Gop/s: "
        + ", ".join(f"{name} {peak / 1e9:.0f}" for name, peak in machine.peaks.items()),
        f"  {'op':<14}{'format':<8}{'MFLOP':>11}{'MB':>10}{'FLOP/B':>8}{'ms':>9}  {'bound':<9}{'peak':>6}{'memory':>8}",
    ]
    for row in found.lines:
        lines.append(_text(row.kind, row.format, row, machine, machine.peaks[row.format]))
    whole = Line(kind="", format="", flops=found.flops, bytes=found.bytes, seconds=total, bound="")
    lines.append(_text("total", "", whole, machine, None))
    lines.append(f"  at most {step.tokens / total:,.0f} tokens/s" + ("" if found.activations else _FREE))
    if measured is not None:
        lines.append(
            f"  measured {1e3 * measured:.2f} ms, {step.tokens / measured:,.0f} tokens/s: "
            f"{100 * total / measured:.0f} % of the limit"
        )
    return "\n".join(lines)


_FREE = "; activations stay in the cache and count nothing"


def _text(kind: str, form: str, row: Line, machine: Machine, peak: float | None) -> str:
    seconds = row.seconds or 1e-12
    of_peak = f"{100 * row.flops / seconds / peak:.0f} %" if peak else ""
    intensity = f"{row.flops / row.bytes:.1f}" if row.bytes else "-"
    return (
        f"  {kind:<14}{form:<8}{row.flops / 1e6:>11.1f}{row.bytes / 1e6:>10.2f}{intensity:>8}{1e3 * row.seconds:>9.3f}"
        f"  {row.bound:<9}{of_peak:>6}{100 * row.bytes / seconds / machine.read:>6.0f} %"
    ).rstrip()
