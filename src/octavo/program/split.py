"""Joined linears whose parts are stored in different formats: split where joining would cost bytes.

q, k and v (or gate and up) share an input and are one matmul where one execution format holds them all. Mixed files
(Q4_K_M and its like store v in more bits than q and k in half the layers) would have to be widened to the format that
holds every part, and some pairs only meet in float32. A linear more costs a stage of some microseconds a step, so a
join is split where that saves at least `WORTH` bytes. `docs/decisions/0008-k-quants.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from octavo.program.builder import joined_name
from octavo.program.ir import DeviceOp, Linear, Part, Program, Segment, Weight
from octavo.program.precision import eight_bits
from octavo.quant.table import FORMATS, PACKED, SOURCES, Wishes, choose

WORTH = 64 << 10
"""Bytes of weights that a stage more must save: about 5 microseconds of reading."""


class Stored(Protocol):
    """What the split asks of a checkpoint's tensor."""

    @property
    def source(self) -> str: ...


def split_joins(program: Program, tensors: Mapping[str, Stored], wishes: Wishes) -> Program:
    """`program` with every join that is worth it as several linears, each over parts of one format. Results are the
    same to the bit: no sum crosses columns. The program itself where there is none."""
    eight = eight_bits(program)
    plans = {
        name: runs
        for name, weight in program.weights.items()
        if len(weight.parts) > 1 and weight.kind == "linear" and weight.experts == 1
        for runs in [_runs(weight, tensors, wishes, eight=name in eight)]
        if len(runs) > 1
    }
    plans = {name: plans[name] for op in program.ops if isinstance(op, Linear) for name in [op.weight] if name in plans}
    if not plans:
        return program
    weights = {name: weight for name, weight in program.weights.items() if name not in plans}
    ops: list[DeviceOp] = []
    segments: list[Segment] = []
    for segment in program.segments:
        first = len(ops)
        for op in program.ops[segment.first : segment.end]:
            if isinstance(op, Linear) and op.weight in plans:
                ops += _split(op, program.weights, plans[op.weight], weights)
            else:
                ops.append(op)
        segments.append(Segment(segment.name, first, len(ops)))
    used = {op.bias for op in program.ops if isinstance(op, Linear) and op.weight not in plans}
    for op in program.ops:
        if isinstance(op, Linear) and op.weight in plans and op.bias is not None and op.bias not in used:
            weights.pop(op.bias, None)
    result = replace(program, weights=weights, ops=tuple(ops), segments=tuple(segments))
    result.validate()
    return result


def _runs(weight: Weight, tensors: Mapping[str, Stored], wishes: Wishes, *, eight: bool) -> list[tuple[Part, ...]]:
    """The parts in runs of one format; one run where splitting is not worth it (or a tensor is missing, which
    choose_formats reports)."""
    packed = _packed_runs(weight.parts, tensors)
    if packed:
        return packed
    sources = [tensors[p.tensor].source for p in weight.parts if p.tensor in tensors]
    if len(sources) != len(weight.parts) or not set(sources) <= set(SOURCES):
        return [weight.parts]
    if weight.precise:
        wishes = Wishes(dtype=wishes.dtype)
    runs: list[list[Part]] = []
    formats: list[str] = []
    for part, source in zip(weight.parts, sources, strict=True):
        own = choose([source], wishes, eight=eight).format
        if formats and formats[-1] == own:
            runs[-1].append(part)
        else:
            runs.append([part])
            formats.append(own)
    joined = FORMATS[choose(sources, wishes, eight=eight).format].storage_bytes(weight.n, weight.k)
    apart = sum(
        FORMATS[own].storage_bytes(sum(p.rows for p in run), weight.k) for run, own in zip(runs, formats, strict=True)
    )
    worth = joined - apart >= WORTH * (len(runs) - 1)
    return [tuple(run) for run in runs] if worth else [weight.parts]


def _packed_runs(parts: Sequence[Part], tensors: Mapping[str, Stored]) -> list[tuple[Part, ...]]:
    """The parts in the runs that a packed checkpoint holds as one matrix each; none where it is not packed."""
    runs: list[tuple[Part, ...]] = []
    first = 0
    while first < len(parts):
        ends = (
            end
            for end in range(len(parts), first, -1)
            for tensor in [tensors.get(joined_name([p.tensor for p in parts[first:end]]))]
            if tensor is not None and tensor.source.startswith(PACKED)
        )
        end = next(ends, None)
        if end is None:
            return []
        runs.append(tuple(parts[first:end]))
        first = end
    return runs


def _split(
    op: Linear, old: Mapping[str, Weight], runs: Sequence[tuple[Part, ...]], weights: dict[str, Weight]
) -> list[DeviceOp]:
    """The linears of `runs`, side by side in the columns of `op`; declares their weights and biases."""
    ops: list[DeviceOp] = []
    at, first = 0, 0
    for run in runs:
        rows = sum(part.rows for part in run)
        name = joined_name([part.tensor for part in run])
        weights[name] = replace(old[op.weight], name=name, n=rows, parts=run)
        bias = None
        if op.bias is not None:
            parts = old[op.bias].parts[first : first + len(run)]
            assert [p.rows for p in parts] == [p.rows for p in run], (op.bias, run)
            bias = joined_name([part.tensor for part in parts])
            weights[bias] = replace(old[op.bias], name=bias, n=rows, parts=parts)
        ops.append(replace(op, out=op.out.part(at, rows), weight=name, bias=bias))
        at += rows
        first += len(run)
    return ops
