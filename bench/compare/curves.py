"""Loads for the plots: five arrival rates, and batches of one to 32."""

from __future__ import annotations

import numpy as np

from bench.load import Figures, batch, figures_of, ids, mixed
from octavo.bench.client import Client
from octavo.bench.datasets import Ask

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)
"""Of the reference's capacity; above 1 the reference cannot keep up."""
BATCHES = (1, 2, 4, 8, 16, 32)
REQUESTS = 16


async def rates(client: Client, rep: int, *, capacity: float) -> Figures:
    """W5's requests at each share of `capacity` (req/s), as many open as come: keys `rates:SHARE`."""
    found: Figures = {}
    for index, share in enumerate(SHARES):
        random = np.random.default_rng(6000 + 10 * rep + index)
        asks, rate = mixed(random, REQUESTS), share * capacity
        starts = np.cumsum(random.exponential(1 / rate, len(asks))).tolist()
        run = await batch(client, asks, at_once=len(asks), starts=starts)
        found[f"rates:{share}"] = figures_of(run) | {"rate_req_s": rate}
    return found


async def batches(client: Client, rep: int) -> Figures:
    """`batches:N`: N streams of 64 in and 32 out (tokens a second of all), N prompts of 256 with one token out."""
    found: Figures = {}
    for count in BATCHES:
        random = np.random.default_rng(7000 + 100 * rep + count)
        decode = figures_of(await batch(client, [Ask(ids(random, 64), 32) for _ in range(count)], at_once=count))
        prompts = await batch(client, [Ask(ids(random, 256), 1) for _ in range(count)], at_once=count)
        found[f"batches:{count}"] = {
            "batch": count,
            "decode_tok_s": 1e3 * count / decode["tpot_p50_ms"],
            "prefill_tok_s": 256 * count / prompts.seconds,
            "cached_tokens": decode["cached_tokens"],
        }
    return found
