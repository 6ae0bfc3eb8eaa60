"""What a load measures, with the field's names and definitions.

    sent        first token                                last token
     │──────────────│────│────│────│────────────│──────────────│
     └─── TTFT ─────┘└ITL┘                                      │
     └────────────────────────── E2EL ──────────────────────────┘
                     TPOT = (E2EL - TTFT) / (output tokens - 1)

An ITL is the gap between two consecutive events that carry content; where a server bundles tokens into one event,
`events_per_token` is below 1 and says so. TPOT is one number a request, ITL one a gap: means agree, tails do not.
Throughputs are over the whole run, from the first request sent to the last answer ended. Only answers that ended well
count; failures are counted beside them and named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from octavo.errors import ConfigError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
GOODPUT = ("ttft", "tpot", "e2el")
"""Latencies of a whole request: what a goodput limit may name."""


class Answer(Struct, frozen=True):
    """One request as the client saw it; times in seconds of one clock."""

    sent: float
    stamps: Sequence[float]
    """Arrival of each event that carried content."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    asked: int
    """Output tokens asked for."""
    error: str | None = None
    """Why it failed, in few words; the figures of a failed answer count nowhere."""
    waited: float = 0.0
    """Seconds it was due and could not be sent (--max-concurrency); part of no latency."""

    @property
    def ttft(self) -> float:
        return self.stamps[0] - self.sent

    @property
    def e2el(self) -> float:
        return self.stamps[-1] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive events."""
        return [b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """0 for an answer of one token, which has none."""
        return (self.stamps[-1] - self.stamps[0]) / max(1, self.output_tokens - 1)


class Run(Struct, frozen=True):
    """Answers of one load in the order of the requests, and how long it took."""

    answers: Sequence[Answer]
    seconds: float

    @property
    def good(self) -> list[Answer]:
        return [a for a in self.answers if a.error is None]


class Spread(Struct, frozen=True):
    """A sample in milliseconds; `percentiles` by their name, as in "99" or "99.9"."""

    mean: float
    median: float
    std: float
    low: float
    high: float
    percentiles: Mapping[str, float]


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) of an ascending sequence, linear between the two nearest ranks; NaN when empty."""
    if not ordered:
        return math.nan
    at = (len(ordered) - 1) * q / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(seconds: Iterable[float], percentiles: Sequence[float] = (90, 99)) -> Spread:
    """Of seconds; NaN throughout where there are none."""
    values = sorted(1e3 * s for s in seconds)
    if not values:
        nan = math.nan
        return Spread(nan, nan, nan, nan, nan, {f"{q:g}": nan for q in percentiles})
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    named = {f"{q:g}": percentile(values, q) for q in percentiles}
    return Spread(mean, percentile(values, 50), std, values[0], values[-1], named)


def latencies(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Seconds by metric. Answers of one token have no TPOT and no ITL."""
    return {
        "ttft": [a.ttft for a in answers],
        "tpot": [a.tpot for a in answers if a.output_tokens > 1],
        "itl": [gap for a in answers for gap in a.gaps],
        "e2el": [a.e2el for a in answers],
    }


def meets(answer: Answer, limits: Mapping[str, float]) -> bool:
    """Whether a request keeps every limit (milliseconds). A failed one keeps none."""
    return answer.error is None and all(1e3 * getattr(answer, name) <= most for name, most in limits.items())


def parse_limits(words: Sequence[str]) -> dict[str, float]:
    """ "ttft:500" "tpot:50,e2el:9000" as milliseconds by metric. Raises ConfigError."""
    limits: dict[str, float] = {}
    for word in (w for many in words for w in many.split(",") if w):
        name, _, text = word.partition(":")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in GOODPUT or not 0 < value < math.inf:
            allowed = " | ".join(f"{n}:MILLISECONDS" for n in GOODPUT)
            raise ConfigError(f"--goodput: got {word!r}, allowed: {allowed}")
        limits[name] = value
    return limits


def summary(
    run: Run, *, percentiles: Sequence[float] = (90, 99), limits: Mapping[str, float] | None = None
) -> dict[str, float | int | dict[str, int] | None]:
    """All figures of a run under vLLM's names (`mean_ttft_ms`, `p99_itl_ms`, `output_throughput`, ...).

    Latencies are milliseconds, throughputs per second. A latency without a sample is None; so is `request_goodput`
    without limits.
    """
    good, seconds = run.good, max(run.seconds, 1e-12)
    read = sum(a.prompt_tokens for a in good)
    written = sum(a.output_tokens for a in good)
    figures: dict[str, float | int | dict[str, int] | None] = {
        "duration": run.seconds,
        "completed": len(good),
        "failed": len(run.answers) - len(good),
        "errors": dict(Counter(a.error for a in run.answers if a.error is not None)),
        "total_input_tokens": read,
        "total_output_tokens": written,
        "cached_tokens": sum(a.cached_tokens for a in good),
        "short_answers": sum(a.output_tokens < a.asked for a in good),
        "events_per_token": sum(len(a.stamps) for a in good) / max(1, written),
        "request_throughput": len(good) / seconds,
        "output_throughput": written / seconds,
        "total_token_throughput": (read + written) / seconds,
        "request_goodput": sum(meets(a, limits) for a in run.answers) / seconds if limits else None,
        "max_client_wait_ms": 1e3 * max((a.waited for a in run.answers), default=0.0),
    }
    for name, sample in latencies(good).items():
        s = spread(sample, percentiles)
        figures |= {f"mean_{name}_ms": _number(s.mean), f"median_{name}_ms": _number(s.median)}
        figures |= {f"std_{name}_ms": _number(s.std), f"max_{name}_ms": _number(s.high)}
        figures |= {f"p{q}_{name}_ms": _number(v) for q, v in s.percentiles.items()}
    return figures


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
