"""`octavo explain`: what the engine will do with a model, without loading its weights."""

from __future__ import annotations

from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs

SPEC = Spec(
    "explain",
    "Print a model's program, its executable, memory, and the cost of a step. No weights are loaded.",
    (EngineArgs,),
    (Positional("model"),),
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    from octavo.runner.explain import explain

    print(explain(parsed[EngineArgs]))
    return OK
