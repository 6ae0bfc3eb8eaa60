"""Loads for any OpenAI-compatible server, with the same token ids for every engine (needs aiohttp and numpy).

    python bench/load.py --url http://127.0.0.1:8000 --workloads W1,W2,W3,W4,W5 --reps 3 --json out.json

Greedy, `ignore_eos`, streaming /v1/completions: every engine does the same work. Random ids from [1000, 45000); the
seed depends on workload and repetition only. The server must be fresh for each repetition: a prefix-cache hit in W1-W3
makes the figure void.

    W1  64 requests of 32 to 256 tokens, 32 at once, 128 out      closed loop    output tokens per second
    W2  one stream, 128 in, 128 out, three times                  closed loop    decode tokens per second (1 / TPOT)
    W3  one prompt of 2,048 tokens, 16 out, twice                 closed loop    prefill tokens per second (2048 / TTFT)
    W4  32 at once: 1,024 shared + 32 own in, 32 out; then again  closed loop    seconds, cold and warm
    W5  3 of 4 short (128 in, 64 out), 1 of 4 long (2,048 in, 32 out): capacity with 8 at once, then Poisson arrivals
        at 0.7 of it                                              open loop      gaps between tokens
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

LOW, HIGH = 1000, 45000


class Ask(NamedTuple):
    prompt: list[int]
    out: int


@dataclass(slots=True, frozen=True)
class Answer:
    """One request as the client saw it; times in seconds of time.perf_counter()."""

    sent: float
    stamps: list[float]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    asked: int

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return np.diff(self.stamps).tolist()

    @property
    def tpot(self) -> float:
        return (self.stamps[-1] - self.stamps[0]) / max(1, self.output_tokens - 1)


class Client:
    """Sends asks to one server and one model."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url.rstrip("/"), model

    async def ask(self, ask: Ask) -> Answer:
        """Stream one completion. Raises RuntimeError with the server's words where it refuses."""
        body = {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.out,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent, stamps, usage = time.perf_counter(), [], {}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for line in response.content:
                data = line[5:].strip() if line.startswith(b"data:") else b""
                if data in (b"", b"[DONE]"):
                    continue
                now, event = time.perf_counter(), json.loads(data)
                if event.get("error"):
                    raise RuntimeError(str(event["error"])[:300])
                usage = event.get("usage") or usage
                choice = (event.get("choices") or [{}])[0]
                text = choice.get("text")
                # An empty first event, or an empty last one that only carries the finish reason, is not a token.
                if text or (text == "" and stamps and not choice.get("finish_reason")):
                    stamps.append(now)
        if not stamps:
            raise RuntimeError("the stream held no token")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(
            sent,
            stamps,
            usage.get("prompt_tokens", len(ask.prompt)),
            cached,
            usage.get("completion_tokens", len(stamps)),
            ask.out,
        )

    async def batch(self, asks: Sequence[Ask], *, at_once: int, starts: Sequence[float] | None = None) -> Run:
        """All asks with at most `at_once` open; `starts` (seconds from now) makes it an open loop."""
        gate = asyncio.Semaphore(at_once)
        began = time.perf_counter()

        async def go(index: int, ask: Ask) -> Answer:
            if starts is not None:
                await asyncio.sleep(max(0.0, began + starts[index] - time.perf_counter()))
            async with gate:
                return await self.ask(ask)

        answers = await asyncio.gather(*(go(i, a) for i, a in enumerate(asks)))
        return Run(list(answers), time.perf_counter() - began)


class Run(NamedTuple):
    answers: list[Answer]
    seconds: float

    def figures(self) -> dict[str, float]:
        """Rates per second, latencies in the unit of their name."""
        gaps = [1e3 * g for a in self.answers for g in a.gaps] or [0.0]
        ttft = [a.ttft for a in self.answers]
        out = sum(a.output_tokens for a in self.answers)
        return {
            "requests": len(self.answers),
            "seconds": self.seconds,
            "out_tok_s": out / self.seconds,
            "total_tok_s": (out + sum(a.prompt_tokens for a in self.answers)) / self.seconds,
            "ttft_p50_s": float(np.percentile(ttft, 50)),
            "ttft_p99_s": float(np.percentile(ttft, 99)),
            "itl_p50_ms": float(np.percentile(gaps, 50)),
            "itl_p99_ms": float(np.percentile(gaps, 99)),
            "itl_max_ms": max(gaps),
            "tpot_p50_ms": 1e3 * float(np.median([a.tpot for a in self.answers])),
            "cached_tokens": sum(a.cached_tokens for a in self.answers),
            "short_answers": sum(a.output_tokens < a.asked for a in self.answers),
            "events_per_token": sum(len(a.stamps) for a in self.answers) / max(1, out),
        }


Figures = dict[str, dict[str, float]]
Random = np.random.Generator


def ids(random: Random, count: int) -> list[int]:
    return random.integers(LOW, HIGH, count).tolist()


async def w1(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(1000 + rep)
    asks = [Ask(ids(random, int(random.integers(32, 257))), 128) for _ in range(64)]
    return {"W1": (await client.batch(asks, at_once=32)).figures()}


async def w2(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(2000 + rep)
    asks = [Ask(ids(random, 128), 128) for _ in range(3)]
    figures = (await client.batch(asks, at_once=1)).figures()
    return {"W2": figures | {"decode_tok_s": 1e3 / figures["tpot_p50_ms"]}}


async def w3(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(3000 + rep)
    asks = [Ask(ids(random, 2048), 16) for _ in range(2)]
    figures = (await client.batch(asks, at_once=1)).figures()
    return {"W3": figures | {"prefill_tok_s": 2048 / figures["ttft_p50_s"]}}


async def w4(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(4000 + rep)
    shared, found = ids(random, 1024), {}
    for name in ("W4", "W4warm"):
        asks = [Ask(shared + ids(random, 32), 32) for _ in range(32)]
        found[name] = (await client.batch(asks, at_once=32)).figures()
    return found


async def w5(client: Client, rep: int) -> Figures:
    random = np.random.default_rng(5000 + rep)

    def mix(count: int) -> list[Ask]:
        return [Ask(ids(random, 2048), 32) if i % 4 == 3 else Ask(ids(random, 128), 64) for i in range(count)]

    closed = await client.batch(mix(16), at_once=8)
    capacity = 16 / closed.seconds
    asks = mix(32)
    starts = np.cumsum(random.exponential(1 / (0.7 * capacity), len(asks))).tolist()
    opened = await client.batch(asks, at_once=8, starts=starts)
    rates = {"capacity_req_s": capacity, "rate_req_s": 0.7 * capacity}
    return {"W5cap": closed.figures(), "W5": opened.figures() | rates}


WORKLOADS: dict[str, Callable[[Client, int], Awaitable[Figures]]] = {"W1": w1, "W2": w2, "W3": w3, "W4": w4, "W5": w5}


async def warm_up(client: Client) -> None:
    """A few short requests, alone and together, that share nothing with the loads."""
    random = np.random.default_rng(7)
    for _ in range(2):
        await client.ask(Ask(ids(random, 64), 8))
    await client.batch([Ask(ids(random, 64), 8) for _ in range(8)], at_once=8)


async def measure(url: str, model: str, workloads: Sequence[str], *, rep: int = 0) -> Figures:
    """Warm up, then each workload once. A figure that the prefix cache falsified gets the key `void`."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=900)
    found: Figures = {}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session:
        client = Client(session, url, model)
        await warm_up(client)
        for name in workloads:
            found |= await WORKLOADS[name](client, rep)
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
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    names = args.workloads.split(",")
    if unknown := [n for n in names if n not in WORKLOADS]:
        parser.error(f"--workloads: got {unknown[0]!r}, allowed: {', '.join(WORKLOADS)}")
    runs: list[Figures] = []
    for rep in range(args.reps):
        runs.append(asyncio.run(measure(args.url, args.model, names, rep=rep)))
        for name, figures in runs[-1].items():
            print(f"{name} rep {rep}: " + " ".join(f"{k}={v:.4g}" for k, v in figures.items()), flush=True)
    if args.json:
        body: dict[str, Any] = {"runs": runs, "median": median(runs)}
        args.json.write_text(json.dumps(body, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
