"""Every op of a model's Program over tokens and context, beside the limit that binds it (needs NumPy).

The whole executable runs, with its profile on: weights come from memory and activations from the cache, as they do in
service. An op's time is the median over many steps, from thread 0 beginning it until all threads ended it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from octavo.bench.stages import Stage, match
from octavo.config.args import EngineArgs
from octavo.errors import OctavoError
from octavo.kernels import native
from octavo.kernels.limits import LEAST_POOL, MOST_POOL, Meter
from octavo.kernels.machine import last_level_cache
from octavo.models.registry import build_program
from octavo.program.cost import Cost, Step, op_cost
from octavo.program.executable import ExecutableSpec
from octavo.quant.table import FORMATS
from octavo.runner.loader import load_runner, plan_model
from octavo.runner.opened import open_model
from octavo.runner.runner import Runner
from octavo.types import NewSeq, SamplingParams, SeqPlan, StepPlan

READ = "read"
"""Name of the bandwidth among the limits; the others are named after their format."""
NEAR_SECONDS = 10.0
"""A limit counts for what was measured within this time of it,"""
NEAR_SHARE = 0.10
"""if the readings before and after differ by no more than this."""
SECONDS = 1.0
LEAST, MOST = 4, 100


class Gauge(Protocol):
    """What measures limits: `octavo.kernels.limits.Meter`, or a stand-in of a test."""

    def read(self) -> float: ...
    def peak(self, fmt: str, *, activation: str = "") -> float: ...
    def close(self) -> None: ...


class Reading(Struct, frozen=True):
    """The machine's limits at one moment."""

    at: float
    """time.perf_counter() when it ended."""
    limits: dict[str, float]
    """"read" -> bytes a second, format -> operations a second."""


class Row(Struct, frozen=True):
    """All stages of one label and format in one step."""

    op: str
    format: str
    count: int
    ms: float
    """Of all of them together."""
    gb_per_s: float
    gop_per_s: float
    bound: str
    """memory or compute, whichever takes longer; cache: neither weights, keys nor values, so no limit is claimed."""
    limit_ms: float
    share: float | None
    """limit_ms / ms. None where no limit is claimed, or it is void."""
    void: bool
    """The limit that binds was read too early or too late, or moved meanwhile."""


class Cell(Struct, frozen=True):
    """One shape of step."""

    tokens: int
    seqs: int
    context: int
    steps: int
    """How many were timed."""
    ms: float
    """Of the ops of one step."""
    read_before: float
    read_after: float
    """GB/s."""
    void: tuple[str, ...]
    """Limits whose two readings are too far apart, in time or in value: no share of them is claimed."""
    rows: tuple[Row, ...]


class Threads(Struct, frozen=True):
    """All shapes with one number of threads."""

    threads: int
    isa: str
    peaks: dict[str, float]
    """Format -> Gop/s (2 a multiply-add), the best reading."""
    cells: tuple[Cell, ...]


def void_limits(before: Reading, began: float, ended: float, after: Reading) -> tuple[str, ...]:
    """Limits that what ran from `began` to `ended` may not be compared with."""
    if began - before.at > NEAR_SECONDS or after.at - ended > NEAR_SECONDS:
        return tuple(before.limits)
    pairs = {name: sorted((value, after.limits[name])) for name, value in before.limits.items()}
    return tuple(name for name, (low, high) in pairs.items() if high > low * (1 + NEAR_SHARE))


def rows_of(
    spec: ExecutableSpec,
    stages: Sequence[tuple[Stage, float]],
    step: Step,
    *,
    limits: Mapping[str, float],
    void: Sequence[str] = (),
    cache_bytes: int,
) -> tuple[Row, ...]:
    """Stages with their seconds in one step, by label and format, the slowest first.

    `limits` are those of a Reading, `void` some of them.

    Activations count as memory traffic only where an op's own outgrow the last cache.
    """
    found: dict[tuple[str, str], list[tuple[float, Cost]]] = {}
    for stage, seconds in stages:
        cost = Cost()
        for op in stage.ops:
            one = op_cost(spec, op, step)
            spill = one.activations if one.activations > cache_bytes else 0
            cost += Cost(one.flops, one.weights, one.kv, spill)
        found.setdefault((stage.label, stage.format), []).append((seconds, cost))
    rows = []
    for (label, form), many in found.items():
        seconds = sum(s for s, _ in many) or 1e-12
        total = sum((c for _, c in many), Cost())
        name = form if form in limits else "f32"
        memory, compute = total.bytes / limits[READ], total.flops / limits[name]
        bound = "memory" if memory >= compute else "compute"
        if not total.weights + total.kv or (not form and label != "attend"):
            bound = "cache"  # norms, activations, table look-ups: what they move stays in the cache
        lost = bound != "cache" and (READ if bound == "memory" else name) in void
        limit = max(memory, compute)
        rows.append(
            Row(
                op=label,
                format=form,
                count=len(many),
                ms=1e3 * seconds,
                gb_per_s=total.bytes / seconds / 1e9,
                gop_per_s=total.flops / seconds / 1e9,
                bound=bound,
                limit_ms=1e3 * limit,
                share=None if lost or bound == "cache" else limit / seconds,
                void=lost,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.ms))


def measure(
    args: EngineArgs,
    steps: Sequence[Step],
    threads: Sequence[int],
    *,
    meter: Callable[[str, int], Gauge] | None = None,
    on_cell: Callable[[], None] | None = None,
) -> list[Threads]:
    """Every step shape with every number of threads. `args.model` is a path. Raises what loading raises."""
    checkpoint = open_model(args.model)
    args = _room(args, steps, groups=len(build_program(checkpoint.config).groups))
    spec = plan_model(args, checkpoint).spec
    formats = sorted({w.format for w in spec.weights if w.format in FORMATS} | {"f32"})
    found, cache_bytes = [], last_level_cache()
    for count in threads:
        gauge = meter(native.isa(), count) if meter else _gauge(count, cache_bytes)
        runner = load_runner(msgspec.structs.replace(args, threads=count))
        try:
            runner.poison()  # pages of the cache are touched, or reading them would read one page of zeros
            cells = []
            peaks: dict[str, float] = {}
            before = _reading(gauge, formats)
            for step in steps:
                cell, after = _cell(runner, spec, step, gauge, before=before, cache_bytes=cache_bytes)
                cells.append(cell)
                for name in formats:
                    peaks[name] = max(peaks.get(name, 0.0), before.limits[name], after.limits[name])
                before = after
                if on_cell is not None:
                    on_cell()
            gops = {f: p / 1e9 for f, p in peaks.items()}
            found.append(Threads(count, native.isa(), gops, tuple(cells)))
        finally:
            gauge.close()
            runner.close()
    return found


def _gauge(threads: int, cache_bytes: int) -> Gauge:
    """Over weights that no cache holds."""
    return Meter(native.isa(), threads, pool=min(MOST_POOL, max(LEAST_POOL, 3 * cache_bytes)))


def _reading(gauge: Gauge, formats: Iterable[str]) -> Reading:
    limits = {READ: gauge.read()} | {f: gauge.peak(f, activation=FORMATS[f].activation) for f in formats}
    return Reading(time.perf_counter(), limits)


def _cell(
    runner: Runner,
    spec: ExecutableSpec,
    step: Step,
    gauge: Gauge,
    *,
    before: Reading,
    cache_bytes: int,
) -> tuple[Cell, Reading]:
    """One shape, and the reading after it, which is the next one's before."""
    exe: Any = getattr(runner.backend, "exe", None)
    if exe is None:
        raise OctavoError("bench kernels: this executor has no profile, allowed: --executor native")
    _run(runner, step, 0)
    began = time.perf_counter()
    taken: list[list[tuple[str, float, int]]] = []
    while len(taken) < LEAST or (time.perf_counter() < began + SECONDS and len(taken) < MOST):
        exe.profile(True)
        _run(runner, step, len(taken) + 1)
        taken.append(exe.timings())
    ended = time.perf_counter()
    exe.profile(False)
    after = _reading(gauge, [name for name in before.limits if name != READ])
    void = void_limits(before, began, ended, after)
    names = [name for name, _, _ in taken[0]]
    # The median of each stage over the steps: what the system took from a few of them does not count.
    middle = [statistics.median(one[i][1] for one in taken) for i in range(len(names))]
    stages = [
        pair
        for pair, (_, _, calls) in zip(zip(match(spec, names), middle, strict=True), taken[0], strict=True)
        if calls
    ]
    limits = {name: (value + after.limits[name]) / 2 for name, value in before.limits.items()}
    rows = rows_of(spec, stages, step, limits=limits, void=void, cache_bytes=cache_bytes)
    cell = Cell(
        step.tokens,
        step.seqs,
        step.context,
        len(taken),
        sum(r.ms for r in rows),
        before.limits[READ] / 1e9,
        after.limits[READ] / 1e9,
        void,
        rows,
    )
    return cell, after


def _run(runner: Runner, step: Step, number: int) -> None:
    result = runner.execute(plan_of(step, number, block_size=runner.facts.block_size, groups=len(runner.facts.groups)))
    if result.error:
        raise OctavoError(f"a step of {step.tokens} tokens could not run: {result.error}")


def plan_of(step: Step, number: int, *, block_size: int, groups: int) -> StepPlan:
    """A step of this shape: sequences brought anew, each with blocks of its own, one logit row each."""
    count, each = step.tokens // step.seqs, -(-step.context // block_size)
    ids = np.full(step.context, 5, np.int32).tobytes()
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    plans = []
    for slot in range(step.seqs):
        first = 1 + slot * groups * each
        tables = [list(range(first + g * each, first + (g + 1) * each)) for g in range(groups)]
        new = NewSeq(slot, ids, step.context, step.context - count, params)
        plans.append(SeqPlan(slot, count, 1, 0, tables, new))
    return StepPlan(number, plans, list(range(step.seqs)))


def _room(args: EngineArgs, steps: Sequence[Step], *, groups: int) -> EngineArgs:
    """The arguments with room for every step; KV groups share the pool."""
    seqs, tokens, context = (max(getattr(s, name) for s in steps) for name in ("seqs", "tokens", "context"))
    blocks = max(s.seqs * (-(-s.context // args.block_size)) for s in steps)
    blocks = max(blocks, -(-(context + 1) // args.block_size))  # a lone sequence's longest, as planning counts it
    return msgspec.structs.replace(
        args,
        max_num_seqs=max(seqs, 1),
        max_num_batched_tokens=max(tokens, seqs),
        max_model_len=context + 1,
        num_kv_blocks=1 + groups * blocks,
    )
