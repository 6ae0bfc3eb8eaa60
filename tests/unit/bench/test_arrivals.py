"""Arrival processes: seeded, with the rate and the spread they claim."""

from __future__ import annotations

import math
import statistics

import pytest

from octavo.bench.arrivals import parse_rates, starts
from octavo.errors import ConfigError


def gaps(burstiness: float) -> list[float]:
    due = starts(4000, rate=5.0, burstiness=burstiness, seed=3)
    assert due is not None
    return [b - a for a, b in zip([0.0, *due], due, strict=False)]


def test_the_seed_decides() -> None:
    assert starts(20, rate=2.0, seed=1) == starts(20, rate=2.0, seed=1)
    assert starts(20, rate=2.0, seed=1) != starts(20, rate=2.0, seed=2)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_gaps_have_the_mean_and_the_variation_of_their_gamma(burstiness: float) -> None:
    sample = gaps(burstiness)
    assert min(sample) >= 0
    assert statistics.fmean(sample) == pytest.approx(1 / 5.0, rel=0.1)
    variation = statistics.pstdev(sample) / statistics.fmean(sample)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_an_infinite_rate_has_no_times() -> None:
    assert starts(5, rate=math.inf) is None


def test_rates() -> None:
    assert parse_rates(()) == [math.inf]
    assert parse_rates(("1,2.5", "inf")) == [1.0, 2.5, math.inf]
    for bad in ("0", "-1", "x", "nan", "1,,2"):
        with pytest.raises(ConfigError, match="--request-rate: got"):
            parse_rates((bad,))
