"""`octavo bench tune`: try engine options under a load and suggest the fastest that keeps the limits."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from octavo.bench.report import number, table
from octavo.cli.bench_data import DatasetFlags, ResultFlags, about
from octavo.cli.bench_serve import LoadFlags, Plan, checked, measured, spread, target
from octavo.cli.errors import FAILED, OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec, flags_of
from octavo.config.args import EngineArgs
from octavo.config.rivals import near
from octavo.errors import ConfigError, OctavoError


class TuneFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Search."""

    tune: tuple[str, ...] = ("max-num-seqs=8,32,128", "max-num-batched-tokens=128,256,512")
    """An engine option and the values to try, as in max-num-seqs=8,32; every combination is tried."""
    good_share: float = 0.99
    """Share of requests that must keep every limit of --goodput."""


SPEC = Spec(
    "bench tune",
    "Start a server for every combination of engine options, load it, and suggest the fastest that keeps the limits.",
    (TuneFlags, LoadFlags, DatasetFlags, ResultFlags, EngineArgs),
    (Positional("model"),),
    """\
example: octavo bench tune smollm2 --goodput e2el:5000 --max-concurrency 32 --tune max-num-batched-tokens=128,256,512
Without --goodput the fastest wins, whatever its latencies.
""",
)


class Trial(Struct, frozen=True):
    """One combination under one load."""

    flags: Mapping[str, Any]
    good_share: float
    """Of all requests; 1 without limits and failures."""
    figures: Mapping[str, Any]
    """As a run of bench serve; empty where the combination was refused."""
    refused: str | None = None
    """Why it cannot be: a contradiction, or it does not fit."""

    @property
    def speed(self) -> float:
        return float(self.figures.get("output_throughput", 0.0))


def tune(argv: list[str]) -> int:
    parsed = parse(SPEC, spread(argv, "--goodput"))
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[TuneFlags]
    if parsed[LoadFlags].url:
        raise UsageError("--url: not for bench tune, which starts servers of its own")
    if not 0 < flags.good_share <= 1:
        raise UsageError(f"--good-share: got {flags.good_share}, allowed: above 0, up to 1")
    plan = checked(args, parsed[LoadFlags], parsed[DatasetFlags])
    trials: list[Trial] = []
    for chosen in combinations(flags.tune):
        trials += _tried(plan, chosen)
        print(_line(trials[-1]), file=sys.stderr, flush=True)
    found = best(trials, good_share=flags.good_share)
    body = {
        **about("tune", args.model),
        "goodput_limits_ms": plan.limits,
        "good_share": flags.good_share,
        "trials": msgspec.to_builtins(trials),
        "suggested": None if found is None else dict(found.flags),
    }
    parsed[ResultFlags].give(body, _text(args.model, trials, found))
    return OK if found is not None else FAILED


def combinations(words: Sequence[str]) -> list[dict[str, Any]]:
    """Fields of EngineArgs for every combination of values. Raises UsageError."""
    known = flags_of(Spec("bench tune", "", (EngineArgs,)))
    axes: list[list[tuple[str, Any]]] = []
    for word in words:
        name, sign, values = word.removeprefix("--").partition("=")
        field = name.replace("-", "_")
        if not sign or field not in known or field == "model":
            close = near(name, [k.replace("_", "-") for k in known])
            advice = f"; did you mean {close}?" if close else ""
            raise UsageError(f"--tune: got {word!r}, allowed: an engine option=VALUE,VALUE{advice}")
        axes.append([(field, known[field].read(value)) for value in values.split(",")])
    return [dict(one) for one in itertools.product(*axes)]


def best(trials: Sequence[Trial], *, good_share: float) -> Trial | None:
    """The most output tokens a second among those that keep the limits; None where none does."""
    good = [t for t in trials if t.refused is None and t.good_share >= good_share]
    return max(good, key=lambda t: t.speed, default=None)


def _tried(plan: Plan, chosen: dict[str, Any]) -> list[Trial]:
    """A fresh server with these options under every load of the plan."""
    try:
        args = msgspec.structs.replace(plan.args, **chosen)
        one = msgspec.structs.replace(plan, args=args)
        with target(one) as (url, model, _):
            body = asyncio.run(measured(one, url, model))
    except ConfigError as error:
        return [Trial(chosen, 0.0, {}, str(error))]
    except OctavoError as error:  # the server's own refusal is the end of its log
        return [Trial(chosen, 0.0, {}, str(error)[-200:])]
    return [Trial(chosen, _share(run), run) for run in body["runs"]]


def _share(run: Mapping[str, Any]) -> float:
    good = run["completed"] if run["request_goodput"] is None else run["request_goodput"] * run["duration"]
    return float(good) / max(1, int(run["num_prompts"]))


def _words(flags: Mapping[str, Any]) -> str:
    return " ".join(f"--{k.replace('_', '-')} {v}" for k, v in flags.items())


def _line(trial: Trial) -> str:
    if trial.refused is not None:
        return f"{_words(trial.flags)}: refused: {trial.refused}"
    return f"{_words(trial.flags)}: {trial.speed:,.1f} out tok/s, {100 * trial.good_share:.0f} % good"


def _text(model: str, trials: Sequence[Trial], found: Trial | None) -> str:
    rows = [["options", "rate", "at once", "out tok/s", "good", "TTFT p99", "TPOT p50", "ITL p99", "E2EL p99"]]
    for t in trials:
        f = t.figures
        if t.refused is not None:
            rows.append([_words(t.flags), *["refused"], *["-"] * 7])
            continue
        latencies = (number(f.get(k)) for k in ("p99_ttft_ms", "median_tpot_ms", "p99_itl_ms", "p99_e2el_ms"))
        many = "-" if f["max_concurrency"] is None else str(f["max_concurrency"])
        share = f"{100 * t.good_share:.0f} %"
        rows.append([_words(t.flags), str(f["request_rate"]), many, number(t.speed), share, *latencies])
    verdict = "no combination keeps the limits" if found is None else f"suggested: {_words(found.flags)}"
    return f"{model} (latencies in ms)\n{table(rows)}\n{verdict}"
