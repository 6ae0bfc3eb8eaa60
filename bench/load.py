"""Loads for any OpenAI-compatible server, with the same token ids for every engine (needs octavo[bench] and numpy).

    python bench/load.py --url http://127.0.0.1:8000 --workloads W1,W2,W3,W4,W5 --reps 3 --json out.json

Greedy, `ignore_eos`, streaming /v1/completions: every engine does the same work. Random ids from [1000, 45000); the
seed depends on workload and repetition only. The server must be fresh for each repetition: a prefix-cache hit in W1-W3
makes the figure void.

    W1  64 requests of 32 to 256 tokens, 32 at once, 128 out      closed loop    output tokens per second
    W2  one stream, 128 in, 128 out, three times                  closed loop    decode tokens per second (1 / TPOT)
    W3  one prompt of 2,048 tokens, 16 out, twice                 closed loop    prefill tokens per second (2048 / TTFT)
    W4  32 at once: 1,024 shared + 32 own in, 32 out; then again  closed loop    seconds, cold and warm
    W5  3 of 4 short (128 in, 64 out), 1 of 4 long (2,048 in, 32 out): capacity with 8 at once, then Poisson arrivals
        at 0.7 of it, or at --rate                                open loop      gaps between tokens
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo.bench.client import Client, base_url, session
from octavo.bench.datasets import Ask
from octavo.bench.load import run_load
from octavo.bench.metrics import Run, latencies, percentile

LOW, HIGH = 1000, 45000


async def batch(client: Client, asks: Sequence[Ask], *, at_once: int, starts: Sequence[float] | None = None) -> Run:
    """All asks with at most `at_once` open; `starts` (seconds from now) makes it an open loop.

    Raises RuntimeError with the server's words where it fails one: figures without it would not compare.
    """
    run = await run_load(client, asks, at_once=at_once, starts=starts)
    for answer in run.answers:
        if answer.error is not None:
            raise RuntimeError(answer.error)
    return run


def figures_of(run: Run) -> dict[str, float]:
    """Rates per second, latencies in the unit of their name."""
    found = {name: sorted(sample) for name, sample in latencies(run.answers).items()}
    gaps = [1e3 * g for g in found["itl"]] or [0.0]
    out = sum(a.output_tokens for a in run.answers)
    return {
        "requests": len(run.answers),
        "seconds": run.seconds,
        "out_tok_s": out / run.seconds,
        "total_tok_s": (out + sum(a.prompt_tokens for a in run.answers)) / run.seconds,
        "ttft_p50_s": percentile(found["ttft"], 50),
        "ttft_p99_s": percentile(found["ttft"], 99),
        "itl_p50_ms": percentile(gaps, 50),
        "itl_p99_ms": percentile(gaps, 99),
        "itl_max_ms": gaps[-1],
        "tpot_p50_ms": 1e3 * percentile(found["tpot"], 50),
        "cached_tokens": sum(a.cached_tokens for a in run.answers),
        "short_answers": sum(a.output_tokens < a.asked for a in run.answers),
        "events_per_token": sum(len(a.stamps) for a in run.answers) / max(1, out),
    }


Figures = dict[str, dict[str, float]]
Random = np.random.Generator


def ids(random: Random, count: int) -> list[int]:
    return [int(i) for i in random.integers(LOW, HIGH, count)]


async def w1(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(1000 + rep)
    asks = [Ask(ids(random, int(random.integers(32, 257))), 128) for _ in range(64)]
    return {"W1": figures_of(await batch(client, asks, at_once=32))}


async def w2(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(2000 + rep)
    asks = [Ask(ids(random, 128), 128) for _ in range(3)]
    figures = figures_of(await batch(client, asks, at_once=1))
    return {"W2": figures | {"decode_tok_s": 1e3 / figures["tpot_p50_ms"]}}


async def w3(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(3000 + rep)
    asks = [Ask(ids(random, 2048), 16) for _ in range(2)]
    figures = figures_of(await batch(client, asks, at_once=1))
    return {"W3": figures | {"prefill_tok_s": 2048 / figures["ttft_p50_s"]}}


async def w4(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(4000 + rep)
    shared, found = ids(random, 1024), {}
    for name in ("W4", "W4warm"):
        asks = [Ask(shared + ids(random, 32), 32) for _ in range(32)]
        found[name] = figures_of(await batch(client, asks, at_once=32))
    return found


def mixed(random: Random, count: int) -> list[Ask]:
    """Three short requests, then a long one, and so on."""
    return [Ask(ids(random, 2048), 32) if i % 4 == 3 else Ask(ids(random, 128), 64) for i in range(count)]


async def w5cap(client: Client, rep: int) -> Figures:
    """What W5 begins with: how many of its requests a second are answered, 8 at once."""
    return await _capacity(client, np.random.default_rng(5000 + rep))


async def _capacity(client: Client, random: Random) -> Figures:
    closed = await batch(client, mixed(random, 16), at_once=8)
    return {"W5cap": figures_of(closed) | {"capacity_req_s": 16 / closed.seconds}}


async def w5(client: Client, rep: int, rate: float | None = None) -> Figures:
    """`rate` (requests a second): every engine meets the same arrivals, however many of them are then open."""
    random = np.random.default_rng(5000 + rep)
    found = await _capacity(client, random)
    capacity = found["W5cap"]["capacity_req_s"]
    asks = mixed(random, 32)
    arrivals = rate or 0.7 * capacity
    starts = np.cumsum(random.exponential(1 / arrivals, len(asks))).tolist()
    opened = await batch(client, asks, at_once=len(asks) if rate else 8, starts=starts)
    return found | {"W5": figures_of(opened) | {"capacity_req_s": capacity, "rate_req_s": arrivals}}


Workload = Callable[[Client, int], Awaitable[Figures]]
WORKLOADS: dict[str, Workload] = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5, "W5cap": w5cap}


async def warm_up(client: Client) -> None:
    """A few short requests, alone and together, that share nothing with the loads."""
    random = np.random.default_rng(7)
    for _ in range(2):
        await batch(client, [Ask(ids(random, 64), 8)], at_once=1)
    await batch(client, [Ask(ids(random, 64), 8) for _ in range(8)], at_once=8)


async def measure(
    url: str, model: str, workloads: Sequence[str], *, rep: int = 0, table: Mapping[str, Workload] = WORKLOADS
) -> Figures:
    """Warm up, then each workload of `table` once. A figure that the prefix cache falsified gets the key `void`."""
    found: Figures = {}
    async with session() as http:
        # Greedy and ignore_eos: every engine does the same work.
        client = Client(http, base_url(url), model, options={"temperature": 0, "ignore_eos": True})
        await warm_up(client)
        for name in workloads:
            found |= await table[name](client, rep)
    for name in ("W1", "W2", "W3"):
        if found.get(name, {}).get("cached_tokens"):
            found[name]["void"] = 1.0
    return found


def median(runs: Sequence[Figures]) -> Figures:
    """Per workload and figure, the median over repetitions."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {
        name: {key: float(np.median([r[name][key] for r in runs if name in r])) for key in runs[0][name]}
        for name in names
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Loads for an OpenAI-compatible server (see the top of this file).")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="m", help="served model name")
    parser.add_argument("--workloads", default="W1,W2,W3,W4", help="of " + ", ".join(WORKLOADS))
    parser.add_argument("--reps", type=int, default=1, help="repetitions (their prompts differ)")
    parser.add_argument("--rate", type=float, help="arrivals a second in W5 (default: 0.7 of what the server can do)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    names = args.workloads.split(",")
    if unknown := [n for n in names if n not in WORKLOADS]:
        parser.error(f"--workloads: got {unknown[0]!r}, allowed: {', '.join(WORKLOADS)}")
    table = WORKLOADS | {"W5": partial(w5, rate=args.rate)}
    runs: list[Figures] = []
    for rep in range(args.reps):
        runs.append(asyncio.run(measure(args.url, args.model, names, rep=rep, table=table)))
        for name, figures in runs[-1].items():
            print(f"{name} rep {rep}: " + " ".join(f"{k}={v:.4g}" for k, v in figures.items()), flush=True)
    if args.json:
        body: dict[str, Any] = {"runs": runs, "median": median(runs)}
        args.json.write_text(json.dumps(body, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
