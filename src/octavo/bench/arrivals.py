"""When requests are sent in an open loop."""

from __future__ import annotations

import math
from itertools import accumulate
from random import Random

from octavo.errors import ConfigError


def starts(count: int, *, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[float] | None:
    """Seconds after the beginning at which each request is due; None for an infinite rate: all at once.

    Gaps are Gamma(shape=burstiness, mean=1/rate): 1 is a Poisson process, below 1 comes in bursts, far above 1 is
    nearly regular. The first request waits for a gap too.
    """
    if math.isinf(rate):
        return None
    random = Random(f"arrivals {seed}")
    return list(accumulate(random.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)))


def parse_rates(words: tuple[str, ...]) -> list[float]:
    """ "1" "2,4,inf" as requests per second; nothing given is one infinite rate. Raises ConfigError."""
    rates: list[float] = []
    for word in (w for many in words for w in many.split(",")):
        try:
            rate = float(word)
        except ValueError:
            rate = math.nan
        if not rate > 0:
            raise ConfigError(f"--request-rate: got {word!r}, allowed: numbers above 0, or inf")
        rates.append(rate)
    return rates or [math.inf]
