"""The arithmetic of the metrics, exactly, on timings made by hand."""

from __future__ import annotations

import math

import pytest

from octavo.bench.metrics import Answer, Run, meets, parse_limits, percentile, spread, summary
from octavo.errors import ConfigError

# Times that binary fractions hold: sums and differences are exact.
FIRST = Answer(sent=1.0, stamps=[1.5, 1.75, 2.5], prompt_tokens=10, cached_tokens=4, output_tokens=3, asked=3)
SECOND = Answer(sent=2.0, stamps=[2.25, 2.5], prompt_tokens=20, cached_tokens=0, output_tokens=4, asked=5)
SINGLE = Answer(sent=0.0, stamps=[0.125], prompt_tokens=5, cached_tokens=0, output_tokens=1, asked=1)
FAILED = Answer(sent=0.0, stamps=[], prompt_tokens=9, cached_tokens=0, output_tokens=0, asked=7, error="HTTP 500: no")


def test_latencies_of_a_request() -> None:
    assert (FIRST.ttft, FIRST.e2el, FIRST.gaps, FIRST.tpot) == (0.5, 1.5, [0.25, 0.75], 0.5)
    # Four tokens in two events: TPOT counts tokens, ITL events.
    assert (SECOND.gaps, SECOND.tpot) == ([0.25], 0.25 / 3)
    assert (SINGLE.gaps, SINGLE.tpot, SINGLE.e2el) == ([], 0.0, 0.125)


def test_e2el_is_ttft_and_the_gaps() -> None:
    for answer in (FIRST, SECOND, SINGLE):
        assert answer.e2el == answer.ttft + sum(answer.gaps)


def test_summary_counts_what_ended_well() -> None:
    f = summary(Run([FIRST, SECOND, SINGLE, FAILED], 4.0))
    assert (f["completed"], f["failed"], f["errors"]) == (3, 1, {"HTTP 500: no": 1})
    assert (f["total_input_tokens"], f["total_output_tokens"], f["cached_tokens"]) == (35, 8, 4)
    assert (f["request_throughput"], f["output_throughput"], f["total_token_throughput"]) == (0.75, 2.0, 10.75)
    assert f["short_answers"] == 1
    assert f["events_per_token"] == 6 / 8
    assert f["request_goodput"] is None
    assert f["mean_ttft_ms"] == pytest.approx((500 + 250 + 125) / 3)
    assert f["median_ttft_ms"] == 250
    assert f["mean_itl_ms"] == pytest.approx((250 + 750 + 250) / 3)
    assert f["max_itl_ms"] == 750
    # The answer of one token has no TPOT; it would pull the mean down.
    assert f["mean_tpot_ms"] == pytest.approx((500 + 250 / 3) / 2)


def test_nothing_measured_is_nothing_not_zero() -> None:
    f = summary(Run([FAILED], 1.0))
    assert f["median_ttft_ms"] is None
    assert f["p99_itl_ms"] is None
    assert f["output_throughput"] == 0


def test_percentiles_are_numpys() -> None:
    np = pytest.importorskip("numpy")
    values = sorted([3.5, 1.0, 9.25, 4.0, 4.0, 7.125, 100.0])
    for q in (0, 10, 25, 50, 90, 99, 99.9, 100):
        assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-12)
    assert percentile([5.0], 99) == 5.0
    assert math.isnan(percentile([], 50))


def test_spread_is_in_milliseconds() -> None:
    s = spread([0.001, 0.003], (50, 99.9))
    assert (s.mean, s.median, s.std, s.low, s.high) == (2, 2, 1, 1, 3)
    assert set(s.percentiles) == {"50", "99.9"}


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    limits = {"ttft": 500.0, "tpot": 100.0}
    assert not meets(FIRST, limits)  # 500 ms between tokens
    assert meets(FIRST, {"ttft": 500.0})  # a limit may be met exactly
    assert meets(SECOND, limits)
    assert meets(SINGLE, limits)
    assert not meets(FAILED, {})
    assert summary(Run([FIRST, SECOND, SINGLE, FAILED], 4.0), limits=limits)["request_goodput"] == 0.5


def test_limits_are_read_as_vllm_writes_them() -> None:
    assert parse_limits(["ttft:500", "tpot:50.5"]) == {"ttft": 500, "tpot": 50.5}
    assert parse_limits(["ttft:500,e2el:9000"]) == {"ttft": 500, "e2el": 9000}
    for bad in ("itl:5", "ttft", "ttft:", "ttft:-1", "ttft:nan", "ttft:inf", "e2e:5"):
        with pytest.raises(ConfigError, match="--goodput: got"):
            parse_limits([bad])
