"""Text for people: the Program, the Executable it became, memory, and the cost of typical steps."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.facts import KVGroup, kind_of, peak_blocks
from octavo.program.cost import Cost, Step, op_cost, step_cost
from octavo.program.executable import ExecutableSpec, PlacedBuffer
from octavo.program.ir import Buffer, DeviceOp, Host, Op, Program, View, inner, writes

MB = 1e6


def explain(spec: ExecutableSpec, *, layers: int = 1, steps: Iterable[Step] | None = None) -> str:
    """Both levels, memory and cost. `layers`: how many layers to print op by op (the others are alike)."""
    shapes = list(steps or (Step.decode(1, 1024), Step.decode(32, 256), Step.prefill(512)))
    parts = [program_text(spec.program, layers=layers), executable_text(spec, layers=layers)]
    parts += [memory_text(spec), cost_text(spec, shapes)]
    return "\n\n".join(parts) + "\n"


def program_text(program: Program, *, layers: int = 1) -> str:
    """Meaning: ops over buffers, by segment."""
    kinds = [w.kind for w in program.weights.values()]
    lines = [
        f"Program {program.name}: {len(program.ops)} ops, {len(program.buffers)} buffers, "
        f"{kinds.count('linear')} matrices, {kinds.count('vec')} vectors, {kinds.count('table')} tables",
        f"  vocabulary {program.vocab_size:,}, up to {program.max_len:,} positions",
        *_groups(program),
    ]
    hidden = 0
    for segment in program.segments:
        number = segment.name.partition("layers.")[2]
        if number and int(number) >= layers:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  … {hidden} more layers like it")
            hidden = 0
        lines.append(f"  [{segment.name}]")
        lines += [f"    {_op(op, program.buffers)}" for op in program.ops[segment.first : segment.end]]
    return "\n".join(lines)


def _groups(program: Program) -> list[str]:
    """The KV groups; how they came about where there are several."""
    lines = []
    for g in program.groups:
        padding = max(0, g.places - g.layers)
        left = f", {padding} of {g.places} places padding" if padding else ""
        lines.append(f"  KV group {g.name}: {g.layers} layers of {g.kv_heads} x {g.head_dim}{left}")
    if len(program.groups) > 1:
        padding = sum(max(0, g.places - g.layers) for g in program.groups)
        lines.append(
            f"  one pool: blocks of {program.groups[0].places} layers, chosen for the least padding ({padding} places) "
            f"and groups ({len(program.groups)})"
        )
    return lines


def executable_text(spec: ExecutableSpec, *, layers: int = 1) -> str:
    """What runs: the same ops with dtypes, fusions and places."""
    lines = [
        f"Executable for {spec.backend}: {len(spec.ops)} ops, {len(spec.buffers)} buffers in "
        f"{spec.arena_bytes / MB:.1f} MB (a step of up to {spec.limits.max_tokens} tokens, {spec.limits.max_rows} rows)"
    ]
    lines += [f"  warning: {note}" for note in spec.notes]
    formats = {w.weight.name: w.format for w in spec.weights}
    hidden = 0
    for name, (first, end) in spec.segments.items():
        number = name.partition("layers.")[2]
        if name == "layers":
            continue
        if number and int(number) >= layers:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  … {hidden} more layers like it")
            hidden = 0
        lines.append(f"  [{name}]")
        for op in spec.ops[first:end]:
            weight = getattr(inner(op), "weight", None)
            form = f"  ({formats[weight]})" if weight and formats[weight] != "vec" else ""
            lines.append(f"    {_op(op, spec.buffers)}{form}")
    return "\n".join(lines)


def memory_text(spec: ExecutableSpec) -> str:
    """Weights by format, buffers, KV per block and per 1,024 positions."""
    sizes: dict[str, int] = {}
    for w in spec.weights:
        sizes[w.format] = sizes.get(w.format, 0) + w.bytes
    by_format = ", ".join(f"{name} {size / MB:.1f}" for name, size in sorted(sizes.items(), key=lambda s: -s[1]))
    block = spec.block_bytes
    return "\n".join(
        [
            "Memory",
            f"  weights     {spec.weights_bytes / MB:10.1f} MB   ({by_format})",
            f"  activations {spec.arena_bytes / MB:10.1f} MB   (planned by lifetime; "
            f"{sum(b.size for b in spec.buffers) / MB:.1f} MB if nothing were shared)",
            f"  KV          {block / MB:10.3f} MB a block of {spec.limits.block_size} positions in one group, "
            f"{_kv_at(spec, 1024) / MB:.1f} MB for 1,024 positions, {_kv_at(spec, 8192) / MB:.1f} MB for 8,192 "
            f"({spec.kv[0].dtype})",
        ]
    )


def _kv_at(spec: ExecutableSpec, positions: int) -> int:
    """Bytes a sequence of this length holds while it decodes."""
    size = spec.limits.block_size
    groups = [KVGroup(name=g.name, kind=kind_of(g.window), layers=g.layers, window=g.window) for g in spec.kv]
    return peak_blocks(groups, positions, block_size=size, chunk=1) * spec.block_bytes


def cost_text(spec: ExecutableSpec, steps: Iterable[Step]) -> str:
    """A table of cost by kind of op, one block a step."""
    lines = ["Cost per step"]
    for step in steps:
        total = step_cost(spec, step)
        lines.append(
            f"  {step.tokens} tokens in {step.seqs} sequences, context {step.context}: "
            f"{total.flops / 1e9:.2f} GFLOP, {total.bytes / MB:.1f} MB moved, "
            f"{total.flops / max(1, total.bytes):.1f} FLOP/B"
        )
        kinds: dict[str, Cost] = {}
        for op in spec.ops:
            kinds[op.kind] = kinds.get(op.kind, Cost()) + op_cost(spec, op, step)
        for kind, cost in sorted(kinds.items(), key=lambda k: -k[1].bytes):
            lines.append(
                f"    {kind:<14}{cost.flops / 1e6:>12.1f} MFLOP  weights {cost.weights / MB:>9.2f} MB  "
                f"KV {cost.kv / MB:>9.2f} MB  activations {cost.activations / MB:>9.2f} MB"
            )
    return "\n".join(lines)


def _op(op: Op, buffers: tuple[Buffer, ...] | tuple[PlacedBuffer, ...]) -> str:
    """`out = kind(inputs, weight)` with buffer names cut to what tells them apart."""
    host = "host " if isinstance(op, Host) else ""
    device: DeviceOp = inner(op)
    outputs = [_view(v, buffers) for v in writes(device)] or ["cache"]
    inputs = [_view(getattr(device, name), buffers) for name in device.reads]
    extra = [_short(str(getattr(device, f))) for f in ("weight", "bias") if getattr(device, f, None)]
    for field in ("eps", "scale", "rotary", "group", "layer", "norm", "factor", "experts"):
        if hasattr(device, field):
            extra.append(f"{field}={getattr(device, field):.6g}")
    sign = "+=" if getattr(device, "accumulate", False) else "="
    return f"{', '.join(outputs)} {sign} {host}{device.kind}({', '.join([*inputs, *extra])})"


def _view(view: View, buffers: tuple[Buffer, ...] | tuple[PlacedBuffer, ...]) -> str:
    buffer = buffers[view.buffer]
    times = "" if buffer.times == 1 else f"{buffer.times}·"
    form = f"[{times}{buffer.rows.value}, {buffer.width}]{'' if buffer.dtype is None else ' ' + buffer.dtype}"
    if view.columns == buffer.width and view.offset == 0 and view.heads == 1:
        return f"{_short(buffer.name)} {form}"
    heads = f" as {view.heads} x {view.width}" if view.heads > 1 else ""
    return f"{_short(buffer.name)}[{view.offset}:{view.end}]{heads}{'' if buffer.dtype is None else ' ' + buffer.dtype}"


def _short(name: str) -> str:
    """The last two parts of a checkpoint name; `model.layers.0.mlp.down_proj.weight` -> `mlp.down_proj`."""
    return ".".join(name.removesuffix(".weight").split(".")[-2:])
