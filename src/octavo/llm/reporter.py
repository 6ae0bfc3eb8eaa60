"""A log line every ten seconds while there is work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.engine.messages import EngineStats
from octavo.obs.log import get_logger
from octavo.obs.metrics import Metrics

log = get_logger(__name__)

INTERVAL = 10.0


class Reporter:
    """Streams, queue, tokens a second in and out, KV use, hit rate, since the last line. Silent when idle."""

    def __init__(self, metrics: Metrics, stats: Callable[[], EngineStats]) -> None:
        self._metrics, self._stats = metrics, stats
        self._last = self._counts()

    def _counts(self) -> tuple[float, float, int, int]:
        stats = self._stats()
        tokens = self._metrics.prompt_tokens.value, self._metrics.generation_tokens.value
        return *tokens, stats.prefix_queries, stats.prefix_hits

    def line(self, seconds: float) -> str | None:
        """What happened in the last `seconds`; None: nothing."""
        stats, now = self._stats(), self._counts()
        came, went, queries, hits = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        if not (came or went or stats.running or stats.waiting):
            return None
        rate = f"{hits / queries:.0%}" if queries else "-"
        return (
            f"{stats.running} running, {stats.waiting} waiting; "
            f"{came / seconds:,.1f} tok/s in, {went / seconds:,.1f} out; "
            f"KV {stats.kv_usage:.0%} used, prefix hits {rate}"
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            line = self.line(INTERVAL)
            if line is not None:
                log.info(line)
