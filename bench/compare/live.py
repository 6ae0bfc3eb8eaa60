"""Measures a real server: bandwidth, start, loads, memory, bandwidth again."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.compare.curves import batches, rates
from bench.compare.engine import Engine, Model, said
from bench.compare.quality import quality, windows
from bench.compare.records import Session
from bench.compare.runner import REFERENCE_SHARE
from bench.load import WORKLOADS, Workload, measure, w5
from bench.machine import bandwidth, foreign_share, pss_mib
from octavo.bench.process import free_port, running

HWBW = Path(__file__).resolve().parents[1] / "hwbw.c"
PROMPT: list[int] = [1001, 1002, 1003]
"""Ids, not text: the same for every engine."""
PATIENCE = 900.0
"""Seconds to a first answer: vLLM compiles the model at every start."""
LIMITS = {"decode_s": (1, 192), "prefill_s": (2048, 2048)}
"""W2 midway (128 in, 64 of 128 out) and W3, as (tokens, context) of a step."""


class Live:
    """`octavo`: its command up to the subcommand, for what its Program says is the least time."""

    def __init__(self, octavo: Sequence[str]) -> None:
        self.octavo = list(octavo)

    def session(
        self, engine: Engine, model: Model, loads: Sequence[str], *, rep: int, capacity: float | None
    ) -> Session:
        table: dict[str, Workload] = WORKLOADS | {"batches": batches}
        if "quality" in loads:
            table["quality"] = partial(quality, prompts=windows(engine.weights(model)))
        if capacity:
            table["W5"] = partial(w5, rate=REFERENCE_SHARE * capacity)
            table["rates"] = partial(rates, capacity=capacity)
        before = _gb_s()
        port = free_port()
        command, env = engine.command(model, port), os.environ | engine.environment()
        with running(command, port=port, model="m", prompt=PROMPT, env=env, ready_timeout=PATIENCE) as server:
            with foreign_share(server.pid) as share:
                figures = asyncio.run(measure(server.url, "m", loads, rep=rep, table=table))
            memory, start = pss_mib(server.pid), server.start_seconds
        after = _gb_s()
        limits = self._limits(engine, model) if engine.name == "octavo" else {}
        return Session(start, memory, share[0], before, after, time.strftime("%F %T"), figures, limits)

    def _limits(self, engine: Engine, model: Model) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, (tokens, context) in LIMITS.items():
            shape = ["--tokens", str(tokens), "--context", str(context), "--json"]
            again = ["--remeasure"] if not found else []
            told = said([*self.octavo, "explain", str(engine.weights(model)), *shape, *again])
            found[name] = float(json.loads(told)["steps"][0]["total"]["seconds"])
        return found


def _gb_s() -> float | None:
    found = bandwidth(HWBW)
    return None if found is None else found["read_gb_s_all"]
