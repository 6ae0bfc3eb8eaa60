"""`octavo bench serve`: load a server and say how it answered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from octavo.bench.arrivals import parse_rates
from octavo.bench.datasets import Ask, as_text
from octavo.bench.metrics import LATENCIES, Answer, Run, parse_limits
from octavo.bench.report import page, sweep_table
from octavo.bench.sweep import Point, sweep, warm_up
from octavo.cli.bench_data import DatasetFlags, ResultFlags, about, numbers
from octavo.cli.errors import FAILED, OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs

if TYPE_CHECKING:
    from octavo.bench.client import Client

OWN_NAME = "bench"
"""What a server started here is asked for."""


class LoadFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Load."""

    url: str | None = None
    """A running OpenAI-compatible server, as in http://127.0.0.1:8000; MODEL is then the name to ask it for (default:
    the first it lists). Without --url a server of our own is started with the engine options below."""
    api_key: str | None = None
    """Key for --url. Default: the environment variable OCTAVO_API_KEY."""
    endpoint: Literal["/v1/completions", "/v1/chat/completions"] = "/v1/completions"
    """Where requests go; random data sets are token ids for completions, words for chat."""
    prompt_form: Literal["auto", "ids", "text"] = "auto"
    """How random prompts are sent; text for servers that take no token ids."""
    request_rate: tuple[str, ...] = ()
    """Requests a second (open loop), inf: all due at once. Several, as in 1,2,4, are measured one after the other."""
    burstiness: float = 1.0
    """Shape of the Gamma gaps between arrivals: 1 is Poisson, below 1 bursts, above 1 regular."""
    max_concurrency: tuple[str, ...] = ()
    """Most requests open at a time; with the rate inf a closed loop. Several, as in 1,8,32, are measured in turn."""
    num_warmups: int = 8
    """Requests before the first load, which are not counted."""
    goodput: tuple[str, ...] = ()
    """Limits in milliseconds that a request must keep to count as good: ttft:500 tpot:50 e2el:9000."""
    percentile_metrics: str = ",".join(LATENCIES)
    """Latencies to print, of ttft,tpot,itl,e2el (JSON holds all)."""
    metric_percentiles: str = "90,99"
    """Percentiles of them."""
    timeout: float = 900.0
    """Seconds after which a request has failed."""


SPEC = Spec(
    "bench serve",
    "Load an OpenAI-compatible server: throughput, goodput, TTFT, TPOT, ITL, E2EL. Needs pip install 'octavo[bench]'.",
    (LoadFlags, DatasetFlags, ResultFlags, EngineArgs),
    (Positional("model", required=False),),
    """\
examples: octavo bench serve smollm2 --max-concurrency 1,8,32 --random-input-len 128 --random-output-len 128
          octavo bench serve --url http://127.0.0.1:8000 --request-rate 0.5,1,2 --goodput ttft:1000 tpot:100
--seed makes prompts and arrivals others. Exit code 1 if a request failed.
""",
)


class Plan(msgspec.Struct, frozen=True):
    """A checked command line."""

    args: EngineArgs
    load: LoadFlags
    data: DatasetFlags
    points: list[Point]
    limits: dict[str, float]
    percentiles: list[float]
    metrics: list[str]

    @property
    def seed(self) -> int:
        return self.args.seed or 0

    def asks(self, index: int) -> list[Ask]:
        """Of the sweep's point `index`; -1 warms up."""
        asks = self.data.asks(self.data.ids(f"{self.seed}.{index}"))
        if index < 0:
            asks = [Ask(a.prompt, min(a.out, 16)) for a in asks[: self.load.num_warmups]]
        ids = self.load.prompt_form == "ids" or (self.load.prompt_form == "auto" and "chat" not in self.load.endpoint)
        return asks if ids else list(as_text(asks))


def serve(argv: list[str]) -> int:
    parsed = parse(SPEC, spread(argv, "--goodput"))
    if parsed is None:
        return OK
    plan = checked(parsed[EngineArgs], parsed[LoadFlags], parsed[DatasetFlags])
    from octavo.bench.client import base_url  # noqa: F401  (says at once where the extra is missing)

    with target(plan) as (url, model, start_seconds):
        body = asyncio.run(measured(plan, url, model))
    body["start_seconds"] = start_seconds
    parsed[ResultFlags].give(body, text_of(plan, body))
    return FAILED if any(r["failed"] for r in body["runs"]) else OK


def spread(argv: list[str], flag: str) -> list[str]:
    """`--goodput a b` as `--goodput a --goodput b`: how vLLM's users write it."""
    out: list[str] = []
    after = False
    for word in argv:
        if word.startswith("-"):
            after = word == flag
        elif after and out[-1] != flag and ":" in word:
            out.append(flag)
        out.append(word)
    return out


def checked(args: EngineArgs, load: LoadFlags, data: DatasetFlags) -> Plan:
    """Raises ConfigError for what cannot be measured."""
    if not args.model and not load.url:
        raise UsageError("bench serve: MODEL is missing, and there is no --url of a running server")
    if load.api_key and not load.url:
        raise UsageError("--api-key: got a key without --url, allowed: only together with --url")
    data.check()
    if not load.burstiness > 0:
        raise UsageError(f"--burstiness: got {load.burstiness}, allowed: above 0")
    if not load.timeout > 0:
        raise UsageError(f"--timeout: got {load.timeout}, allowed: above 0 seconds")
    if load.num_warmups < 0:
        raise UsageError(f"--num-warmups: got {load.num_warmups}, allowed: 0 or more")
    metrics = load.percentile_metrics.split(",")
    if unknown := [m for m in metrics if m not in LATENCIES]:
        raise UsageError(f"--percentile-metrics: got {unknown[0]!r}, allowed: {', '.join(LATENCIES)}")
    words = load.max_concurrency
    limits: list[int | None] = [int(n) for w in words for n in numbers("--max-concurrency", w, low=1, high=1e6)]
    points = [
        Point(rate, load.burstiness, many) for rate in parse_rates(load.request_rate) for many in limits or [None]
    ]
    percentiles = numbers("--metric-percentiles", load.metric_percentiles, high=100)
    return Plan(args, load, data, points, parse_limits(load.goodput), percentiles, metrics)


@contextmanager
def target(plan: Plan) -> Iterator[tuple[str, str | None, float | None]]:
    """URL, model name (None: ask the server) and the seconds that a start of our own took."""
    if plan.load.url:
        from octavo.bench.client import base_url

        yield base_url(plan.load.url), plan.args.model or None, None
        return
    from octavo.bench.process import free_port, running

    port = free_port()
    args = msgspec.structs.replace(plan.args, served_model_name=(OWN_NAME,))
    command = [sys.executable, "-m", "octavo", "serve", *words_of(args), "--port", str(port)]
    with running(command, port=port, model=OWN_NAME) as server:
        yield server.url, OWN_NAME, server.start_seconds


def words_of(args: EngineArgs) -> list[str]:
    """The command line that these arguments came from: MODEL, and a flag for each field off its default."""
    words = [args.model]
    for field in msgspec.structs.fields(args):
        value, flag = getattr(args, field.name), field.name.replace("_", "-")
        if field.name == "model" or value == field.default or value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}={one}" for one in (value if isinstance(value, tuple) else (value,))]
    return words


async def measured(plan: Plan, url: str, model: str | None) -> dict[str, Any]:
    """Warm up, run every load of the plan, and make the result's object."""
    from octavo.bench.client import Client, session

    key = plan.load.api_key or os.environ.get("OCTAVO_API_KEY") if plan.load.url else None
    options: dict[str, object] = {"temperature": plan.data.temperature}
    if plan.data.ends:
        options["ignore_eos"] = True
    async with session(api_key=key, timeout=plan.load.timeout) as http:
        nameless = Client(http, url, "")
        name = model or await nameless.first_model()
        client: Client = Client(http, url, name, endpoint=plan.load.endpoint, options=options)
        await warm_up(client, plan.asks(-1))
        with _Bar(plan) as bar:
            runs = await sweep(client, plan.points, plan.asks, seed=plan.seed, on_answer=bar.advance)
    return body_of(plan, url, plan.args.model or name, runs)


def body_of(plan: Plan, url: str, model: str, runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON object of a result; docs/performance.md lists its fields."""
    return {
        **about("serve", model),
        "url": url,
        "endpoint": plan.load.endpoint,
        "dataset": {k: v for k, v in msgspec.structs.asdict(plan.data).items() if v is not None},
        "seed": plan.seed,
        "goodput_limits_ms": plan.limits,
        "runs": [
            p.figures(r, percentiles=sorted({*plan.percentiles, 99.0}), limits=plan.limits)
            for p, r in zip(plan.points, runs, strict=True)
        ],
    }


def text_of(plan: Plan, body: dict[str, Any]) -> str:
    """A page for one load, a table for several."""
    started = "" if body["start_seconds"] is None else f"; start to first answer {body['start_seconds']:.2f} s"
    head = f"{body['model_id']} at {body['url']}{body['endpoint']}: {plan.data.words}{started}"
    runs = body["runs"]
    if len(runs) == 1:
        return f"{head}\n{page(plan.points[0], runs[0], metrics=plan.metrics, percentiles=plan.percentiles)}"
    failed = {error: count for r in runs for error, count in r["errors"].items()}
    notes = [f"  failed: {count} x {error}" for error, count in failed.items()]
    return "\n".join([f"{head} (latencies in ms)", sweep_table(plan.points, runs), *notes])


class _Bar:
    """Requests answered, on a terminal."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        if sys.stderr.isatty():
            from tqdm import tqdm

            each = len(self._plan.asks(0))
            self._bar = tqdm(total=each * len(self._plan.points), unit="req", leave=False, dynamic_ncols=True)
        return self

    def advance(self, answer: Answer) -> None:
        if self._bar is not None:
            self._bar.update()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
