"""One server under several loads, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from octavo.bench.arrivals import starts
from octavo.bench.datasets import Ask
from octavo.bench.load import Asker, run_load
from octavo.bench.metrics import Answer, Run, summary
from octavo.errors import OctavoError


class Point(Struct, frozen=True):
    """One load of a sweep."""

    request_rate: float = math.inf
    """Requests a second; infinite: nobody waits for a time."""
    burstiness: float = 1.0
    max_concurrency: int | None = None
    """Most requests open at a time."""

    @property
    def words(self) -> str:
        """Which question the load asks: open and closed loops have different answers."""
        if math.isinf(self.request_rate):
            many = self.max_concurrency
            return "all at once" if many is None else f"closed loop, {many} at a time"
        gaps = "Poisson" if self.burstiness == 1 else f"Gamma, burstiness {self.burstiness:g}"
        held = f", held to {self.max_concurrency} at a time" if self.max_concurrency else ""
        return f"open loop, {self.request_rate:g} requests/s ({gaps}){held}"

    def figures(
        self, run: Run, *, percentiles: Sequence[float], limits: Mapping[str, float] | None
    ) -> dict[str, object]:
        """What goes into JSON for this point: the load, then `metrics.summary`."""
        rate: float | str = "inf" if math.isinf(self.request_rate) else self.request_rate
        load = {"request_rate": rate, "burstiness": self.burstiness, "max_concurrency": self.max_concurrency}
        return {**load, "num_prompts": len(run.answers), **summary(run, percentiles=percentiles, limits=limits)}


async def warm_up(client: Asker, asks: Sequence[Ask]) -> None:
    """The first alone, then all others together. Raises OctavoError where the server fails one: it would fail all."""
    for batch in (asks[:1], asks[1:]):
        if batch:
            run = await run_load(client, batch)
            for answer in run.answers:
                if answer.error is not None:
                    raise OctavoError(f"a warm-up request failed: {answer.error}")


async def sweep(
    client: Asker,
    points: Sequence[Point],
    asks: Callable[[int], list[Ask]],
    *,
    seed: int = 0,
    on_answer: Callable[[Answer], None] | None = None,
    on_run: Callable[[Point, Run], None] | None = None,
) -> list[Run]:
    """Each point once. `asks(i)` are the requests of the i-th: other prompts each time, lest what one point left in the
    prefix cache answer the next."""
    runs: list[Run] = []
    for i, point in enumerate(points):
        batch = asks(i)
        due = starts(len(batch), rate=point.request_rate, burstiness=point.burstiness, seed=seed + i)
        run = await run_load(client, batch, at_once=point.max_concurrency, starts=due, on_answer=on_answer)
        runs.append(run)
        if on_run is not None:
            on_run(point, run)
    return runs
