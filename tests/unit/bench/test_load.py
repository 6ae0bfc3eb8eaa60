"""Loops and sweeps over a client that answers from a clock, without a server."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable

import pytest

from octavo.bench.datasets import Ask
from octavo.bench.load import run_load
from octavo.bench.metrics import Answer, Run
from octavo.bench.report import page, sweep_table
from octavo.bench.sweep import Point, sweep, warm_up
from octavo.errors import OctavoError

ASKS = [Ask([i], 2) for i in range(6)]


class Stand:
    """Takes a moment for every ask and notes how many were open."""

    def __init__(
        self, seconds: float = 0.01, error: str | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seconds, self.error, self.clock = seconds, error, clock
        self.open = self.most = 0
        self.asked: list[Ask] = []

    async def ask(self, ask: Ask) -> Answer:
        sent = self.clock()
        self.asked.append(ask)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(self.seconds)
        self.open -= 1
        if self.error:
            return Answer(sent, [], 1, 0, 0, ask.out, self.error)
        now = self.clock()
        return Answer(sent, [now, now], len(ask.prompt), 0, 2, ask.out)


class Leaping(asyncio.SelectorEventLoop):
    """A loop that leaps to the time it would sleep until: waits take no time and are exact."""

    def __init__(self) -> None:
        super().__init__(Leap(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class Leap(selectors.SelectSelector):
    def __init__(self, loop: Leaping) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.now += max(0.0, timeout or 0.0)
        return super().select(0)


def test_a_closed_loop_keeps_so_many_open() -> None:
    stand = Stand()
    run = asyncio.run(run_load(stand, ASKS, at_once=2))
    assert stand.most == 2
    assert [a.prompt_tokens for a in run.answers] == [1] * 6
    assert run.seconds >= 3 * stand.seconds


def test_without_a_limit_all_are_open() -> None:
    stand = Stand()
    asyncio.run(run_load(stand, ASKS))
    assert stand.most == 6


def test_an_open_loop_sends_on_time_and_says_when_it_could_not() -> None:
    due = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05]
    with asyncio.Runner(loop_factory=Leaping) as runner:
        clock = runner.get_loop().time
        free = runner.run(run_load(Stand(0.001, clock=clock), ASKS, starts=due, clock=clock))
        assert [a.sent for a in free.answers] == pytest.approx(due)
        assert [a.waited for a in free.answers] == pytest.approx([0.0] * 6, abs=1e-9)
        held = runner.run(run_load(Stand(0.05, clock=clock), ASKS, starts=due, at_once=1, clock=clock))
        assert [a.waited for a in held.answers] == pytest.approx([0.04 * i for i in range(6)], abs=1e-9)
        assert [a.ttft for a in held.answers] == pytest.approx([0.05] * 6)  # waiting at the client is no latency


def test_a_sweep_asks_anew_at_each_point() -> None:
    seen: list[int] = []

    def asks(index: int) -> list[Ask]:
        seen.append(index)
        return ASKS[:2]

    points = [Point(max_concurrency=1), Point(1000.0)]
    runs = asyncio.run(sweep(Stand(0.001), points, asks))
    assert seen == [0, 1]
    figures = [p.figures(r, percentiles=[99], limits=None) for p, r in zip(points, runs, strict=True)]
    assert [f["request_rate"] for f in figures] == ["inf", 1000.0]
    assert len(sweep_table(points, figures).splitlines()) == 3


def test_a_failing_warm_up_ends_it() -> None:
    with pytest.raises(OctavoError, match="warm-up request failed: HTTP 400: no such model"):
        asyncio.run(warm_up(Stand(error="HTTP 400: no such model"), ASKS))


@pytest.mark.parametrize(
    ("point", "says"),
    [
        (Point(), "all at once"),
        (Point(max_concurrency=8), "closed loop, 8 at a time"),
        (Point(2.0), "open loop, 2 requests/s (Poisson)"),
        (Point(2.0, 0.5, 4), "open loop, 2 requests/s (Gamma, burstiness 0.5), held to 4 at a time"),
    ],
)
def test_a_load_says_which_loop_it_is(point: Point, says: str) -> None:
    assert point.words == says


def test_the_page_names_failures_and_bundled_tokens() -> None:
    bad = Answer(0.0, [], 1, 0, 0, 4, "HTTP 503: full")
    good = Answer(0.0, [1.0, 2.0], 1, 0, 8, 9)
    f = Point().figures(Run([bad, bad, good], 2.0), percentiles=[99], limits={"ttft": 1.0})
    text = page(Point(), f, metrics=["ttft", "itl"], percentiles=[99])
    assert "failed: 2 x HTTP 503: full" in text
    assert "4.00 tokens an event" in text
    assert "1 answers are shorter" in text
    assert "request goodput" in text
    assert f["median_ttft_ms"] == pytest.approx(1000.0)
