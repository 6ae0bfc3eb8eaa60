"""What windows give back while a real model answers prompts far longer than they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.figures import octavo_command
from bench.rows import Context, Row, at_most, below
from bench.serving import free_port, serve

STREAMS, PROMPT, ANSWER, BLOCK = 8, 2048, 64, 16


def windows(c: Context, section: str, *, groups: int) -> Iterator[Row]:
    """The blocks of the pool that all streams hold at most, beside what as many full groups would hold, and the share
    of held slots without a token. `groups`: of layers, full and sliding."""
    import numpy as np

    from bench.load import Figures, batch, figures_of, ids, measure
    from octavo.bench.client import Client
    from octavo.bench.datasets import Ask

    async def long(client: Client, rep: int) -> Figures:
        random = np.random.default_rng(6000 + rep)
        asks = [Ask(ids(random, PROMPT), ANSWER) for _ in range(STREAMS)]
        return {"long": figures_of(await batch(client, asks, at_once=STREAMS))}

    port = free_port()
    with serve(octavo_command(c, port, "--max-num-batched-tokens", "256"), port=port, model="m") as server:
        with server.sampling(every=0.05) as samples:
            asyncio.run(measure(server.url, "m", ["long"], table={"long": long}))
        last = server.metrics()
    # The last token's K and V are never written.
    full = STREAMS * groups * -(-(PROMPT + ANSWER - 1) // BLOCK)
    most = max(s["kv_group_blocks_used"] for s in samples)
    note = f"{last['kv_blocks_dropped_total']:.0f} given back; full groups would hold {full}"
    title = f"most blocks held by {STREAMS} prompts of {PROMPT} and {ANSWER} answered"
    yield at_most(section, title, most, full / 2, "blocks", note=note)
    yield below(section, "slots without a token meanwhile", 100 * last["kv_cache_waste_perc"], 4.0, "%")
