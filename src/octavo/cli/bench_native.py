"""`octavo bench kernels` and `octavo bench step`: where a step's time goes."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from octavo.bench.report import number, table
from octavo.cli.bench_data import ResultFlags, about, numbers
from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs

if TYPE_CHECKING:
    from octavo.bench.ops import Cell, Threads
    from octavo.bench.steps import Split


class KernelFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes."""

    decode: str = "1,8,32"
    """Steps of so many sequences with one token each; 0: none."""
    prefill: str = "256"
    """Steps of so many tokens of one sequence; 0: none."""
    context: str = "128,1024"
    """Positions of each sequence after the step."""
    bench_threads: str | None = None
    """Numbers of threads to measure. Default: 1 and as many as the engine takes."""


class StepFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes."""

    streams: str = "1,8,32"
    """Decoding sequences."""
    prompt_len: int = 128
    """Tokens of their prompts."""
    steps: int = 64
    """Steps that count."""
    prefill_len: int = 1024
    """Then the steps of one prompt of this length; 0: none."""


KERNELS = Spec(
    "bench kernels",
    "The machine's limits, and every op of a model over tokens and context, each with its share of what binds it.",
    (KernelFlags, ResultFlags, EngineArgs),
    (Positional("model"),),
    "A limit counts only if read within 10 s before and after, and the two readings agree within 10 %.\n",
    without=SERVER_ONLY,
)
STEP = Spec(
    "bench step",
    "Split whole steps into ops, gaps between ops, sampling, Python and front end.",
    (StepFlags, ResultFlags, EngineArgs),
    (Positional("model"),),
    without=SERVER_ONLY,
)


def kernels(argv: list[str]) -> int:
    parsed = parse(KERNELS, argv)
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[KernelFlags]
    args = _native_only("kernels", args)
    decode, prefill, contexts = (
        [int(n) for n in numbers(f"--{name}", getattr(flags, name), high=1e6) if n]
        for name in ("decode", "prefill", "context")
    )
    if not contexts or not decode + prefill:
        raise UsageError("bench kernels: got no shape, allowed: --context with --decode or --prefill")
    # By name: the command line itself reaches NumPy by no path (pyproject.toml, contract "forbidden").
    ops = importlib.import_module("octavo.bench.ops")
    make = importlib.import_module("octavo.program.cost").Step
    steps = [make(n, n, n, c) for c in contexts for n in decode]
    steps += [make(n, 1, 1, max(c, n)) for c in contexts for n in prefill]
    steps = list(dict.fromkeys(steps))
    chosen = numbers("--bench-threads", flags.bench_threads, low=1, high=1024) if flags.bench_threads else None
    threads = [int(n) for n in chosen] if chosen else sorted({1, args.threads or _default_threads()})
    found: list[Threads] = ops.measure(_located(args), steps, threads, on_cell=_dot)
    body = {**about("kernels", args.model), "threads": msgspec.to_builtins(found)}
    parsed[ResultFlags].give(body, "\n\n".join([args.model, *(_threads_text(t) for t in found)]))
    return OK


def step(argv: list[str]) -> int:
    parsed = parse(STEP, argv)
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[StepFlags]
    args = _native_only("step", args)
    for name, least in (("prompt_len", 1), ("steps", 1), ("prefill_len", 0)):
        if getattr(flags, name) < least:
            got = getattr(flags, name)
            raise UsageError(f"--{name.replace('_', '-')}: got {got}, allowed: {least} or more")
    streams = [int(n) for n in numbers("--streams", flags.streams, low=1, high=4096)]
    steps = importlib.import_module("octavo.bench.steps")
    found: list[Split] = steps.split(
        args, streams=streams, prompt=flags.prompt_len, steps=flags.steps, prefill=flags.prefill_len
    )
    names = (*steps.ENGINE, *steps.FRONT)
    shares = [{"ms": s.ms, "in_kernels": s.in_kernels, "python": s.python} for s in found]
    rows = [msgspec.to_builtins(s) | share for s, share in zip(found, shares, strict=True)]
    parsed[ResultFlags].give(
        {**about("step", args.model), "splits": rows}, f"{args.model}\n{_split_text(found, names, steps.MEANING)}"
    )
    return OK


def _native_only(what: str, args: EngineArgs) -> EngineArgs:
    if args.executor != "native":
        raise UsageError(f"--executor: got {args.executor!r}, allowed: native (bench {what} measures kernels)")
    return args


def _located(args: EngineArgs) -> EngineArgs:
    from octavo.engine.build import open_front

    return open_front(args)[0]


def _default_threads() -> int:
    count: int = importlib.import_module("octavo.kernels.native").default_threads()
    return count


def _dot() -> None:
    if sys.stderr.isatty():
        print(".", end="", file=sys.stderr, flush=True)


def _threads_text(found: Threads) -> str:
    peaks = ", ".join(f"{name} {gops:.0f}" for name, gops in found.peaks.items())
    head = f"{found.threads} threads of {len(os.sched_getaffinity(0))} CPUs, {found.isa}; peaks in Gop/s: {peaks}"
    return "\n".join([head, *(_cell_text(c) for c in found.cells)])


def _cell_text(cell: Cell) -> str:
    shape = f"{cell.tokens} tokens in {cell.seqs} sequences, context {cell.context}: {cell.ms:.2f} ms in ops"
    read = f"read {cell.read_before:.1f} GB/s before, {cell.read_after:.1f} after"
    moved = f" (VOID, they moved: {', '.join(cell.void)})" if cell.void else ""
    rows = [["op", "format", "n", "ms", "GB/s", "Gop/s", "bound", "limit ms", "share"]]
    for r in cell.rows:
        share = "void" if r.void else "-" if r.share is None else f"{100 * r.share:.0f} %"
        limit = "-" if r.bound == "cache" else number(r.limit_ms, digits=3)
        rates = (number(r.gb_per_s), number(r.gop_per_s))
        rows.append([r.op, r.format or "-", str(r.count), number(r.ms, digits=3), *rates, r.bound, limit, share])
    return f"\n {shape}; {read}{moved}\n{table(rows)}"


def _split_text(found: list[Split], names: tuple[str, ...], meaning: dict[str, str]) -> str:
    def heads(s: Split) -> str:
        return f"{s.streams} streams" if s.tokens == s.streams else f"prefill, {s.tokens} a step"

    rows: list[list[str]] = [["ms a step", *(heads(s) for s in found), ""]]
    for name in names:
        cells = [s.engine.get(name, s.front.get(name, 0.0)) for s in found]
        rows.append([name, *(number(c, digits=3) for c in cells), meaning[name]])
        if name == "encode":
            rows.append(["step", *(number(s.ms, digits=3) for s in found), "sum of the above"])
            rows.append(["in kernels", *(f"{100 * s.in_kernels:.1f} %" for s in found), "ops / step"])
            rows.append(["python", *(f"{100 * s.python:.1f} %" for s in found), "schedule to encode, without forward"])
            rows.append(["tok/s", *(number(1e3 * s.tokens / s.ms) for s in found), "tokens of a step / step"])
    rows.append(["front end", *(number(sum(s.front.values()), digits=3) for s in found), "beside the engine's step"])
    rows.append(["away", *(number(s.away, digits=3) for s in found), "of forward: the CPU did something else"])
    width = max(len(r[-1]) for r in rows)
    return table([[*r[:-1], f"{r[-1]:<{width}}"] for r in rows])
