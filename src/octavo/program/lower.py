"""lower: a Program and execution formats to an ExecutableSpec for one backend.

    fuse      residual add into the linear's accumulate; ropes over adjacent views into one
    dtypes    a buffer takes the dtype its linears want where its writer can write it; else f32 and a cast
    prune     what nobody reads is not computed
    host      what the backend lacks is wrapped for the reference
    place     dtypes, lifetimes and the largest step give every buffer its bytes in one arena

A fusion may drop a store, never a rounding that a buffer's dtype states.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from octavo.kernels import BackendTable
from octavo.program.executable import (
    ExecutableSpec,
    KVSpec,
    Limits,
    PlacedBuffer,
    PlacedWeight,
    row_bytes,
)
from octavo.program.ir import (
    Add,
    Attend,
    Buffer,
    Cast,
    DeviceOp,
    ExpertLinear,
    Head,
    Host,
    KVWrite,
    Linear,
    Op,
    Program,
    Rope,
    View,
    reads,
    views_of,
    weights_of,
    with_views,
    writes,
)
from octavo.program.memory import Lifetime, plan
from octavo.quant.table import FORMATS, GROUP


class _Work(Struct):
    """Ops in order, each with the index of its segment; buffers may be added."""

    buffers: list[Buffer]
    ops: list[tuple[DeviceOp, int]]


def lower(
    program: Program, formats: Mapping[str, str], limits: Limits, backend: BackendTable, *, kv_dtype: str = "bf16"
) -> ExecutableSpec:
    """`formats`: execution format by linear weight name (Formats.by_weight). kv_dtype: bf16, f32 or int8."""
    segment = [i for i, s in enumerate(program.segments) for _ in range(s.first, s.end)]
    work = _Work(list(program.buffers), list(zip(program.ops, segment, strict=True)))
    if backend.fuses:
        _fuse_residual(work)
        _merge_ropes(work)
    _choose_dtypes(work, formats, backend)
    _prune(work, program.logits)
    if kv_dtype != "int8":
        work.ops = [(_unbalanced(op), s) for op, s in work.ops]
    host = sorted({op.kind for op, _ in work.ops if op.kind not in backend.kinds})
    ops: list[Op] = [op if op.kind in backend.kinds else Host(op) for op, _ in work.ops]
    segments = _segments(program, [s for _, s in work.ops])
    buffers, arena_bytes, renamed = _place(work, segments, limits, reuse=backend.reuses)
    ops = [_renumber(op, renamed) for op in ops]
    used = dict.fromkeys(name for op in ops for name in weights_of(op))
    return ExecutableSpec(
        program=program,
        backend=backend.name,
        limits=limits,
        buffers=buffers,
        weights=tuple(_place_weight(program, name, formats, limits) for name in used),
        kv=tuple(
            KVSpec(g.name, kv_dtype, g.layers, g.kv_heads, g.head_dim, limits.block_size, g.window, g.places)
            for g in program.groups
        ),
        ops=tuple(ops),
        segments=segments,
        arena_bytes=arena_bytes,
        logits=renamed[program.logits],
        notes=tuple(f"{kind}: not in the {backend.name} backend; the reference computes it (slow)" for kind in host),
    )


def _unbalanced(op: DeviceOp) -> DeviceOp:
    """Keys that are numbers, not codes, each have a scale of their own."""
    return replace(op, balance=None) if isinstance(op, KVWrite | Attend) and op.balance else op


# -- fusions ----------------------------------------------------------------------------------------------------------
def _fuse_residual(work: _Work) -> None:
    """y = linear(x); h = h + y   becomes   h = h + linear(x), where y holds no rounding and nobody else sees it."""
    readers: dict[int, list[int]] = {}
    writer: dict[int, list[int]] = {}
    for i, (op, _) in enumerate(work.ops):
        for v in reads(op):
            readers.setdefault(v.buffer, []).append(i)
        for v in writes(op):
            writer.setdefault(v.buffer, []).append(i)
    dropped: set[int] = set()
    for j, (add, segment) in enumerate(work.ops):
        if not isinstance(add, Add) or add.out not in (add.a, add.b):
            continue
        stream, y = add.out, add.b if add.out == add.a else add.a
        made = writer.get(y.buffer, [])
        if stream.buffer == y.buffer or readers.get(y.buffer) != [j] or len(made) != 1:
            continue
        linear, its_segment = work.ops[made[0]]
        plain = isinstance(linear, Linear) and not linear.accumulate and linear.out == y and its_segment == segment
        # A kernel that accumulates into what it still reads would see its own sums.
        plain = plain and all(v.buffer != stream.buffer for v in reads(linear))
        rounded = work.buffers[y.buffer].dtype not in (None, "f32") or work.buffers[stream.buffer].dtype != "f32"
        between = [op for op, _ in work.ops[made[0] + 1 : j]]
        touched = any(v.buffer == stream.buffer for op in between for v in [*reads(op), *writes(op)])
        if not plain or rounded or touched or work.buffers[y.buffer].port:
            continue
        assert isinstance(linear, Linear)
        work.ops[made[0]] = (replace(linear, out=stream, accumulate=True, scale=linear.scale * add.scale), segment)
        dropped.add(j)
    work.ops = [entry for i, entry in enumerate(work.ops) if i not in dropped]


def _merge_ropes(work: _Work) -> None:
    """q and k lie side by side and turn by the same table: one op over all their heads."""
    merged: list[tuple[DeviceOp, int]] = []
    for op, segment in work.ops:
        last = merged[-1] if merged else None
        if last is not None and last[1] == segment and isinstance(op, Rope) and isinstance(last[0], Rope):
            joined = _adjacent(last[0], op)
            if joined is not None:
                merged[-1] = (joined, segment)
                continue
        merged.append((op, segment))
    work.ops = merged


def _adjacent(a: Rope, b: Rope) -> Rope | None:
    same = (a.cos, a.sin, a.rotary, a.x.buffer, a.x.width) == (b.cos, b.sin, b.rotary, b.x.buffer, b.x.width)
    dense = a.x.stride == a.x.width and b.x.stride == b.x.width and a.x.end == b.x.offset
    if not (same and dense and a.x == a.out and b.x == b.out):
        return None
    view = replace(a.x, heads=a.x.heads + b.x.heads)
    return replace(a, x=view, out=view)


# -- dtypes -----------------------------------------------------------------------------------------------------------
def _wanted(op: DeviceOp, formats: Mapping[str, str]) -> str:
    """The dtype in which an op reads its input x."""
    return FORMATS[formats[op.weight]].activation if isinstance(op, Linear | Head | ExpertLinear) else "f32"


def _choose_dtypes(work: _Work, formats: Mapping[str, str], backend: BackendTable) -> None:
    wanted: dict[int, set[str]] = {}
    written: dict[int, list[DeviceOp]] = {}
    for op, _ in work.ops:
        for v in reads(op):
            if not isinstance(op, Linear | ExpertLinear) or v == op.x:
                wanted.setdefault(v.buffer, set()).add(_wanted(op, formats))
        for v in writes(op):
            written.setdefault(v.buffer, []).append(op)
    for i, buffer in enumerate(work.buffers):
        if buffer.dtype is None:
            want = wanted.get(i, {"f32"})
            (only,) = want if len(want) == 1 else ("f32",)
            direct = all(_can_write(op, only, backend) for op in written.get(i, []))
            if only == "q8t":  # its one scale needs all of a row
                views = [v for op in written.get(i, []) for v in writes(op) if v.buffer == i]
                direct = direct and all(v.columns == buffer.width for v in views)
            work.buffers[i] = replace(buffer, dtype=only if direct else "f32")
    _insert_casts(work, formats)


def _can_write(op: DeviceOp, dtype: str, backend: BackendTable) -> bool:
    if dtype == "f32":
        return True
    if isinstance(op, Linear) and op.accumulate:
        return False
    if isinstance(op, Attend) and (dtype == "q8t" or (dtype == "q8" and op.out.width % GROUP)):
        return False  # heads come one by one, and may end inside a group of 32: f32, and a cast behind it
    return dtype in backend.outputs.get(op.kind, ())


def _insert_casts(work: _Work, formats: Mapping[str, str]) -> None:
    """Before a linear whose input has another dtype; a cast serves every reader until its source is written again."""
    out: list[tuple[DeviceOp, int]] = []
    casts: dict[tuple[int, str], View] = {}
    for entry, segment in work.ops:
        op = entry
        if isinstance(op, Linear | Head | ExpertLinear):
            want, have = _wanted(op, formats), work.buffers[op.x.buffer].dtype
            if want != have:
                key = (op.x.buffer, want)
                if key not in casts:
                    source = work.buffers[op.x.buffer]
                    work.buffers.append(replace(source, name=f"{source.name} as {want}", dtype=want, port=False))
                    casts[key] = View(len(work.buffers) - 1, 0, 1, source.width, source.width)
                    out.append((Cast(op.x, casts[key]), segment))
                op = with_views(op, {"x": casts[key]})
        for v in writes(op):
            casts = {key: view for key, view in casts.items() if key[0] != v.buffer}
        out.append((op, segment))
    work.ops = out


# -- dead stores, segments, places ------------------------------------------------------------------------------------
def _prune(work: _Work, logits: int) -> None:
    """Drop ops whose results nobody reads."""
    live = {i for i, b in enumerate(work.buffers) if b.port} | {logits}
    kept: list[tuple[DeviceOp, int]] = []
    for op, segment in reversed(work.ops):
        outputs = writes(op)
        if outputs and not any(v.buffer in live for v in outputs):
            continue
        live.update(v.buffer for v in reads(op))
        kept.append((op, segment))
    work.ops = kept[::-1]


def _segments(program: Program, tags: list[int]) -> dict[str, tuple[int, int]]:
    """First op and one past the last of each segment, and of `layers` as a whole."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for i, segment in enumerate(program.segments):
        count = tags.count(i)
        found[segment.name] = (at, at + count)
        at += count
    layers = [span for name, span in found.items() if name.startswith("layers.")]
    if layers:
        found["layers"] = (layers[0][0], layers[-1][1])
    return found


def _place(
    work: _Work, segments: Mapping[str, tuple[int, int]], limits: Limits, *, reuse: bool
) -> tuple[tuple[PlacedBuffer, ...], int, dict[int, int]]:
    """Buffers that are used, with offsets; the arena's bytes; old buffer number to new.

    What a segment reads from an earlier one stays alive until that segment's end, so that a segment can run again
    (prompt_logprobs: the head over tiles of rows).
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    end_of = [0] * len(work.ops)
    start_of = [0] * len(work.ops)
    for name, (begin, end) in segments.items():
        if name != "layers":
            end_of[begin:end] = [end - 1] * (end - begin)
            start_of[begin:end] = [begin] * (end - begin)
    for i, (op, _) in enumerate(work.ops):
        for v in writes(op):
            first.setdefault(v.buffer, i)
            last[v.buffer] = max(last.get(v.buffer, 0), i)
        for v in reads(op):
            came_in = first[v.buffer] < start_of[i]
            last[v.buffer] = max(last.get(v.buffer, 0), end_of[i] if came_in else i)
    numbers = sorted(first, key=lambda b: first[b])
    items = []
    for b in numbers:
        buffer = work.buffers[b]
        size = limits.rows(buffer.rows) * buffer.times * row_bytes(buffer.dtype or "f32", buffer.width)
        until = len(work.ops) if buffer.port or not reuse else last[b]
        items.append(Lifetime(size, first[b] if reuse else 0, until))
    offsets, total = plan(items)
    placed = []
    for b, item, offset in zip(numbers, items, offsets, strict=True):
        buffer = work.buffers[b]
        dtype = buffer.dtype or "f32"
        placed.append(PlacedBuffer(buffer.name, buffer.rows, buffer.width, dtype, offset, item.size, buffer.times))
    return tuple(placed), total, {b: i for i, b in enumerate(numbers)}


def _renumber(op: Op, renamed: Mapping[int, int]) -> Op:
    if isinstance(op, Host):
        return Host(_renumber_device(op.op, renamed))
    return _renumber_device(op, renamed)


def _renumber_device(op: DeviceOp, renamed: Mapping[int, int]) -> DeviceOp:
    return with_views(op, {name: replace(v, buffer=renamed[v.buffer]) for name, v in views_of(op).items()})


def _place_weight(program: Program, name: str, formats: Mapping[str, str], limits: Limits) -> PlacedWeight:
    weight = program.weights[name]
    if weight.kind == "linear":
        return PlacedWeight(weight, formats[name], weight.n, weight.k)
    if weight.kind == "table":
        return PlacedWeight(weight, "vec", limits.max_len * weight.k, 1)
    return PlacedWeight(weight, "vec", weight.n, 1)
