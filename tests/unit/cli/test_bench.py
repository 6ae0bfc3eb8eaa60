"""`octavo bench`: whole runs on the fake executor, the shape of the JSON, mistakes in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from octavo.cli import main as entry
from octavo.cli.bench import BENCHES
from octavo.cli.bench_serve import spread, words_of
from octavo.cli.errors import OK, USAGE
from octavo.config.args import EngineArgs

FAKE = ("fake", "--executor", "fake")
SMALL = ("--random-ids", "0:250", "--random-input-len", "12", "--random-output-len", "6", "--num-prompts", "8")

HEAD = {"bench", "schema", "date", "octavo", "machine", "model_id"}
SERVE = HEAD | {"url", "endpoint", "dataset", "seed", "goodput_limits_ms", "runs", "start_seconds"}
LATENCY_KEYS = {
    f"{kind}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for kind in ("mean", "median", "std", "max", "p90", "p99")
}
RUN = LATENCY_KEYS | {
    "request_rate", "burstiness", "max_concurrency", "num_prompts", "duration", "completed", "failed", "errors",
    "total_input_tokens", "total_output_tokens", "cached_tokens", "short_answers", "events_per_token",
    "request_throughput", "output_throughput", "total_token_throughput", "request_goodput", "max_client_wait_ms",
}  # fmt: skip
THROUGHPUT = HEAD | {
    "threads", "isa", "dataset", "elapsed_time", "num_requests", "total_input_tokens", "total_output_tokens",
    "cached_tokens", "total_num_tokens", "requests_per_second", "tokens_per_second", "output_tokens_per_second",
}  # fmt: skip
LATENCY = HEAD | {
    "threads", "isa", "batch_size", "input_len", "output_len", "num_iters_warmup", "num_iters", "temperature",
    "avg_latency", "latencies", "percentiles", "output_tokens_per_second",
}  # fmt: skip


def test_a_server_of_our_own_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    out = tmp_path / "r.json"
    words = ["serve", *FAKE, *SMALL, "--max-concurrency", "1,4", "--goodput", "ttft:60000", "tpot:60000"]
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "bench", *words, "--result-filename", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == OK, done.stderr
    body = json.loads(out.read_text())
    assert set(body) == SERVE
    assert [set(r) for r in body["runs"]] == [RUN, RUN]
    one, four = body["runs"]
    assert (one["max_concurrency"], four["max_concurrency"], one["request_rate"]) == (1, 4, "inf")
    assert (one["completed"], one["failed"], one["errors"]) == (8, 0, {})
    assert (one["total_input_tokens"], one["total_output_tokens"], one["cached_tokens"]) == (96, 48, 0)
    assert four["cached_tokens"] == 0  # other prompts than the first point's
    assert one["request_goodput"] == pytest.approx(one["request_throughput"])
    assert one["median_e2el_ms"] >= one["median_ttft_ms"] > 0
    assert body["start_seconds"] > 0
    assert "out tok/s" in done.stdout
    assert len(done.stdout.splitlines()) == 4


def test_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "64", "--num-prompts", "6")
    more = ("--prefix-repetition-suffix-len", "8", "--prefix-repetition-num-prefixes", "2")
    assert entry.main(["bench", "throughput", *FAKE, *words, *more, "--json"]) == OK
    body = json.loads(capsys.readouterr().out)
    assert set(body) == THROUGHPUT
    assert (body["num_requests"], body["total_input_tokens"], body["total_output_tokens"]) == (6, 6 * 72, 6 * 128)
    assert body["total_num_tokens"] == 6 * 200
    assert body["tokens_per_second"] == pytest.approx(1200 / body["elapsed_time"])


def test_throughput_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "abc", "max_tokens": 4}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    words = ("--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "5", "--ignore-eos")
    assert entry.main(["bench", "throughput", *FAKE, *words]) == OK
    text = capsys.readouterr().out
    assert "prompts of p.jsonl" in text
    assert "9 out" in text


def test_latency(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--batch-size",
        "2",
        "--input-len",
        "5",
        "--output-len",
        "3",
        "--num-iters",
        "4",
        "--num-iters-warmup",
        "1",
    )
    assert entry.main(["bench", "latency", *FAKE, *words, "--json"]) == OK
    body = json.loads(capsys.readouterr().out)
    assert set(body) == LATENCY
    assert len(body["latencies"]) == 4
    assert body["avg_latency"] == pytest.approx(sum(body["latencies"]) / 4)
    assert list(body["percentiles"]) == ["10", "25", "50", "75", "90", "99"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "allowed: serve, throughput"),
        (["serve"], "MODEL is missing"),
        (["serve", "m", "--request-rate", "0"], "--request-rate: got '0'"),
        (["serve", "m", "--max-concurrency", "0"], "--max-concurrency: got '0'"),
        (["serve", "m", "--goodput", "ttft:500", "itl:3"], "--goodput: got 'itl:3'"),
        (["serve", "m", "--percentile-metrics", "ttft,speed"], "got 'speed', allowed: ttft"),
        (["serve", "m", "--metric-percentiles", "101"], "--metric-percentiles: got '101'"),
        (["serve", "m", "--burstiness", "0"], "--burstiness"),
        (["serve", "m", "--dataset-name", "custom"], "--dataset-path"),
        (["serve", "m", "--dataset-path", "x"], "--dataset-name custom"),
        (["serve", "m", "--random-range-ratio", "1"], "0 to below 1"),
        (["serve", "--url", "ftp://x"], "http://HOST:PORT"),
        (["serve", "m", "--base-url", "x"], "here it is --url"),
        (["latency", "m", "--num-iters", "0"], "--num-iters: got 0"),
        (["throughput", "m", "--num-prompts", "0"], "--num-prompts: got 0"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["bench", *words]) == USAGE
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", BENCHES)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["bench", name, "--help"]) == OK
    assert f"usage: octavo bench {name}" in capsys.readouterr().out


def test_a_missing_extra_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from octavo.cli.main import main; sys.exit(main(['bench', 'serve', 'm']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == USAGE
    assert "pip install 'octavo[bench]'" in done.stderr


def test_limits_may_follow_one_flag() -> None:
    words = ["--goodput", "ttft:5", "tpot:6", "--json", "x:y"]
    assert spread(words, "--goodput") == ["--goodput", "ttft:5", "--goodput", "tpot:6", "--json", "x:y"]


def test_a_server_of_our_own_gets_the_flags_it_was_given() -> None:
    args = EngineArgs(model="m", threads=2, enable_prefix_caching=False, served_model_name=("a", "b"))
    words = words_of(args)
    from octavo.cli.flags import parse
    from octavo.cli.serve import SPEC

    parsed = parse(SPEC, words)
    assert parsed is not None
    assert msgspec.structs.asdict(parsed[EngineArgs]) == msgspec.structs.asdict(args)
