"""The line that a busy server logs every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time

from octavo.server.ports import LLMPort

log = logging.getLogger("octavo.server")


async def status_lines(llm: LLMPort, interval: float) -> None:
    """Logs until cancelled; says nothing while nothing happens."""
    if not interval:
        return
    before = _Counts(llm)
    while True:
        await asyncio.sleep(interval)
        after = _Counts(llm)
        if line := status_line(llm, before, after):
            log.info("%s", line)
        before = after


class _Counts:
    def __init__(self, llm: LLMPort) -> None:
        stats, metrics = llm.stats(), llm.metrics
        self.time = time.monotonic()
        self.prompt = metrics.prompt_tokens.value
        self.generated = metrics.generation_tokens.value
        self.queries = stats.prefix_queries
        self.hits = stats.prefix_hits


def status_line(llm: LLMPort, before: _Counts, after: _Counts) -> str:
    """Empty when the server was idle in between."""
    stats = llm.stats()
    read, made = after.prompt - before.prompt, after.generated - before.generated
    if not (stats.running or stats.waiting or read or made):
        return ""
    seconds = max(after.time - before.time, 1e-9)
    queries = after.queries - before.queries
    hits = f"{(after.hits - before.hits) / queries:.0%}" if queries > 0 else "none asked"
    return (
        f"{stats.running} streams, {stats.waiting} queued; "
        f"tokens/s: {read / seconds:.0f} in, {made / seconds:.0f} out; "
        f"KV {stats.kv_usage:.1%} in use; prefix hits {hits}"
    )
