"""`octavo bench`: measure a server, an engine, its kernels, its steps."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from octavo.cli.bench_data import DatasetFlags, ResultFlags
from octavo.cli.bench_native import KernelFlags, StepFlags
from octavo.cli.bench_offline import LatencyFlags
from octavo.cli.bench_serve import LoadFlags
from octavo.cli.bench_tune import TuneFlags
from octavo.cli.errors import OK, USAGE, UsageError
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs


class Bench(NamedTuple):
    module: str
    spec: str
    """Name of its `Spec` in the module; the function that runs it has the bench's name."""
    usage: str
    summary: str


BENCHES = {
    "serve": Bench(
        "octavo.cli.bench_serve", "SPEC", "[MODEL | --url URL]", "load an OpenAI-compatible server: latencies, goodput"
    ),
    "throughput": Bench(
        "octavo.cli.bench_offline", "THROUGHPUT", "MODEL", "answer many prompts in process, as fast as it goes"
    ),
    "latency": Bench("octavo.cli.bench_offline", "LATENCY", "MODEL", "answer one batch in process, again and again"),
    "tune": Bench("octavo.cli.bench_tune", "SPEC", "MODEL", "the fastest engine options that keep limits of latency"),
    "kernels": Bench(
        "octavo.cli.bench_native", "KERNELS", "MODEL", "the machine's limits, and every op's share of them"
    ),
    "step": Bench("octavo.cli.bench_native", "STEP", "MODEL", "split steps: ops, gaps, sampling, Python, front end"),
}

SPEC = Spec(
    "bench",
    "Measure a server or an engine.",
    (LoadFlags, DatasetFlags, TuneFlags, LatencyFlags, KernelFlags, StepFlags, ResultFlags, EngineArgs),
    (Positional("model", required=False),),
    words=tuple(BENCHES),
)
"""All benches together, for completion and settings; each has a line of its own."""


def run(argv: list[str]) -> int:
    if argv[:1] in ([], ["-h"], ["--help"]):
        print(help_text(), end="")
        return OK if argv else USAGE
    name, *rest = argv
    if name not in BENCHES:
        raise UsageError(f"bench: got {name!r}, allowed: {', '.join(BENCHES)}")
    code: int = getattr(importlib.import_module(BENCHES[name].module), name)(rest)
    return code


def spec_of(name: str) -> Spec:
    """The line of one bench."""
    found: Spec = getattr(importlib.import_module(BENCHES[name].module), BENCHES[name].spec)
    return found


def help_text() -> str:
    left = {name: f"{name} {b.usage}" for name, b in BENCHES.items()}
    width = max(map(len, left.values()))
    rows = "\n".join(f"  {left[n]:<{width}}  {b.summary}" for n, b in BENCHES.items())
    return (
        "usage: octavo bench WHAT ...\n\nMeasures; docs/performance.md says how to read it.\n\n"
        f"{rows}\n\noctavo bench WHAT --help lists its options. All of them take --json.\n"
    )
