"""`octavo bench tune`: combinations, the choice, and a search over servers on the fake executor."""

from __future__ import annotations

import json

import pytest

from octavo.cli import main as entry
from octavo.cli.bench_tune import Trial, best, combinations
from octavo.cli.errors import FAILED, OK, USAGE, UsageError


def trial(name: int, speed: float, share: float, refused: str | None = None) -> Trial:
    return Trial({"max_num_seqs": name}, share, {"output_throughput": speed}, refused)


def test_every_combination_with_values_of_the_fields_type() -> None:
    found = combinations(["max-num-seqs=8,32", "enable-prefix-caching=true,false"])
    assert found == [{"max_num_seqs": n, "enable_prefix_caching": on} for n in (8, 32) for on in (True, False)]


@pytest.mark.parametrize("word", ["max-num-seq=8", "max-num-seqs", "max-num-seqs=many", "model=x", "="])
def test_options_that_are_none(word: str) -> None:
    with pytest.raises(UsageError, match="got"):
        combinations([word])


def test_the_fastest_that_keeps_the_limits() -> None:
    trials = [trial(1, 50.0, 1.0), trial(2, 90.0, 0.99), trial(3, 200.0, 0.98), trial(4, 0.0, 0.0, "does not fit")]
    assert best(trials, good_share=0.99) is trials[1]
    assert best(trials, good_share=0.9) is trials[2]
    assert best(trials[2:], good_share=1.0) is None


def test_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")
    words = ["fake", "--executor", "fake", "--random-ids", "0:250", "--random-input-len", "8", "--num-prompts", "4"]
    more = ["--random-output-len", "4", "--tune", "max-num-seqs=4", "--max-concurrency", "2", "--json"]
    assert entry.main(["bench", "tune", *words, *more, "--goodput", "ttft:60000", "e2el:60000"]) == OK
    body = json.loads(capsys.readouterr().out)
    assert body["suggested"] == {"max_num_seqs": 4}
    (only,) = body["trials"]
    assert only["good_share"] == pytest.approx(1.0)
    assert only["figures"]["completed"] == 4


def test_what_cannot_be_is_refused_and_not_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")
    words = ["fake", "--executor", "fake", "--tune", "max-num-batched-tokens=1"]
    assert entry.main(["bench", "tune", *words]) == FAILED
    out = capsys.readouterr().out
    assert "refused" in out
    assert "no combination keeps the limits" in out


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["bench", "tune", "m", "--good-share", "0"]) == USAGE
    assert entry.main(["bench", "tune", "m", "--url", "http://127.0.0.1:1"]) == USAGE
    assert "servers of its own" in capsys.readouterr().err
