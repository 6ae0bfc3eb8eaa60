"""Sending many asks: closed loop (so many open at a time) or open loop (at given times), or both limits at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from octavo.bench.datasets import Ask
from octavo.bench.metrics import Answer, Run


class Asker(Protocol):
    """What answers; `octavo.bench.client.Client` over HTTP."""

    async def ask(self, ask: Ask) -> Answer:
        """Never raises for a failed request: that is an answer with `error`."""
        ...


async def run_load(
    client: Asker,
    asks: Sequence[Ask],
    *,
    at_once: int | None = None,
    starts: Sequence[float] | None = None,
    on_answer: Callable[[Answer], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """All asks. `starts`: seconds from now at which each is due (None: now); `at_once`: most open at a time.

    A request that is due but has to wait for its turn is sent late; its latencies begin when it is sent, and `waited`
    says how late. An open loop with waits is no longer open. `clock`: the seconds that answers are stamped with.
    """
    gate = asyncio.Semaphore(at_once or max(1, len(asks)))
    began = clock()

    async def go(index: int, ask: Ask) -> Answer:
        due = began if starts is None else began + starts[index]
        if starts is not None:
            await asyncio.sleep(max(0.0, due - clock()))
        async with gate:
            answer = await client.ask(ask)
        if starts is not None:
            answer = replace(answer, waited=max(0.0, answer.sent - due))
        if on_answer is not None:
            on_answer(answer)
        return answer

    answers = await asyncio.gather(*(go(i, a) for i, a in enumerate(asks)))
    return Run(answers, clock() - began)
