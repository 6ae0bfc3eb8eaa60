"""The figures: install, start, speed, memory, quality. Each check yields rows; none knows about the others."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.compare.results import compared
from bench.machine import bandwidth, cpu_seconds, foreign_share, pss_mib
from bench.quality import quality
from bench.rows import Check, Context, Row, at_least, at_most, below, holds, not_run, shown
from bench.serving import free_port, serve
from octavo.errors import OctavoError

SPEED = "Figures"
FLOORS = {
    "W1": ("out_tok_s", 873.0, "output tok/s"),
    "W2": ("decode_tok_s", 153.0, "decode tok/s"),
    "W3": ("prefill_tok_s", 1500.0, "prefill tok/s"),
}
W4_WARM = 1.7
EVENTS, ONE_EVENT = "events a token on W2", 0.99
"""A client that reads at once gets each token by itself."""
RECORDED = {"W1": 175.0, "W2": 153.0, "W3": 377.0}
"""llama-server on the same file, recorded in November 2026 on two cores of this kind."""
LOADS = ("W1", "W2", "W3", "W4")


def seconds_of(command: list[str], *, runs: int = 5) -> float:
    """The best of some runs."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        times.append(time.perf_counter() - began)
    return min(times)


def import_times(c: Context) -> Iterator[Row]:
    """`import octavo` beyond the bare interpreter; `octavo --help` whole, as a user waits for it."""
    nothing = seconds_of([c.python, "-c", "pass"])
    yield below("1 Install", "import octavo", seconds_of([c.python, "-c", "import octavo"]) - nothing, 0.1, "s")
    script = Path(c.python).parent / "octavo"
    command = [str(script), "--help"] if script.exists() else c.octavo("--help")
    yield below("1 Install", "octavo --help", seconds_of(command), 0.3, "s")


def octavo_command(c: Context, port: int, *extra: str) -> list[str]:
    return c.octavo("serve", c.model, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m", *extra)


def rival_command(c: Context, port: int) -> list[str]:
    """llama-server on the same file, tuned as its guide says for 32 streams on two cores."""
    assert c.rival is not None
    file = c.model if Path(c.model).is_file() else c.model_file()
    flags = ["--alias", "m", "--host", "127.0.0.1", "--port", str(port), "-t", "2", "-tb", "2", "-np", "32"]
    return [c.rival, "-m", file, *flags, "-c", "73728", "-no-kvu", "-fa", "on", "--no-webui"]


def start_idle_memory(c: Context) -> Iterator[Row]:
    c.model_file()  # cached first
    starts = []
    for _ in range(c.reps):
        port = free_port()
        with serve(octavo_command(c, port), port=port, model="m") as server:
            starts.append(server.start_seconds)
            memory = pss_mib(server.pid)
            if len(starts) == c.reps:
                time.sleep(5)
                used, began = cpu_seconds(server.pid), time.monotonic()
                time.sleep(5 if c.quick else 15)
                idle = 100 * (cpu_seconds(server.pid) - used) / (time.monotonic() - began)
    yield below(SPEED, "start to first answered request", statistics.median(starts), 1.5, "s")
    yield below(SPEED, "idle CPU, 5 s after the last request (R35)", idle, 1.0, "% of a core")
    yield shown(SPEED, "memory after the first answer (PSS)", f"{memory:.0f} MiB")


def loads(c: Context) -> Iterator[Row]:
    """W1 to W4 against a freshly started server for each repetition, the rival's turn right after ours."""
    if importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("numpy") is None:
        for name, (_, floor, unit) in FLOORS.items():
            yield not_run(SPEED, name, f">= {floor:g} {unit}", "needs aiohttp and numpy")
        yield not_run("8 Server and CLI", EVENTS, f">= {ONE_EVENT:g} events", "needs aiohttp and numpy")
        return
    from bench.load import measure, median

    yield from _bandwidth(c, "before")
    ours, theirs, waste, hits, memory, foreign = [], [], [], [], [], []
    for rep in range(c.reps):
        port = free_port()
        with serve(octavo_command(c, port), port=port, model="m") as server, foreign_share(server.pid) as share:
            with server.sampling() as samples:
                found = asyncio.run(measure(server.url, "m", ["W1"], rep=rep))
            waste.append(_mean_waste(samples))
            found |= asyncio.run(measure(server.url, "m", ["W2", "W3"], rep=rep))
            before = server.metrics()
            found |= asyncio.run(measure(server.url, "m", ["W4"], rep=rep))
            hits.append(_hit_rate(before, server.metrics()))
            memory.append(pss_mib(server.pid))
        ours.append(found)
        foreign += share
        if c.rival:
            theirs.append(_rival(c, rep))
    yield from _bandwidth(c, "after")
    mid, other = median(ours), median([t for t in theirs if t]) if any(theirs) else {}
    yield from _judged(mid, ours)
    yield from _beside(c, mid, other)
    yield below(SPEED, "KV waste on W1, mean over time", statistics.median(waste), 4.0, "%")
    yield shown(SPEED, "prefix hit rate on W4 (cold and warm together)", f"{statistics.median(hits):.1%}")
    yield shown(SPEED, "memory after W1 to W4 (PSS)", f"{statistics.median(memory):.0f} MiB")
    yield shown(SPEED, "CPU taken by other processes meanwhile", f"{statistics.median(foreign):.1%}")


def _judged(mid: dict[str, dict[str, float]], ours: list[dict[str, dict[str, float]]]) -> Iterator[Row]:
    """The medians against the floors, with the spread over the repetitions."""
    for name, (key, floor, unit) in FLOORS.items():
        void = "void: answered from the prefix cache" if mid[name].get("void") else ""
        spread = f"{min(r[name][key] for r in ours):.4g} to {max(r[name][key] for r in ours):.4g}"
        yield at_least(SPEED, name, 0.0 if void else mid[name][key], floor, unit, note=void or spread)
    events = mid["W2"]["events_per_token"]
    yield at_least("8 Server and CLI", EVENTS, events, ONE_EVENT, "events")
    for name in ("W4", "W4warm"):
        seconds = mid[name]["seconds"]
        if name == "W4warm":
            yield at_most(SPEED, "W4 warm", seconds, W4_WARM, "s")
        else:
            yield shown(SPEED, "W4 cold", f"{seconds:.3g} s")
    for name in ("W1", "W2"):
        figures = mid[name]
        text = f"{figures['itl_p50_ms']:.3g} / {figures['itl_p99_ms']:.3g} ms"
        yield shown(SPEED, f"{name} ITL p50 / p99", text, note=f"TTFT p50 {1e3 * figures['ttft_p50_s']:.0f} ms")


def _bandwidth(c: Context, when: str) -> Iterator[Row]:
    found = bandwidth(c.root / "bench" / "hwbw.c")
    if found is None:
        yield not_run(SPEED, f"memory bandwidth {when}", "reported", "no C compiler")
    else:
        text = f"{found['read_gb_s_1']:.1f} / {found['read_gb_s_all']:.1f} GB/s"
        yield shown(SPEED, f"memory bandwidth {when} the loads, 1 / all threads", text)


def _mean_waste(samples: list[dict[str, float]]) -> float:
    """Percent. The metric is itself an average over the time so far, of all positions held: the last one counts."""
    return 100 * samples[-1]["kv_cache_waste_perc"] if samples else math.nan


def _hit_rate(before: dict[str, float], after: dict[str, float]) -> float:
    queries = after["prefix_cache_queries_total"] - before["prefix_cache_queries_total"]
    return (after["prefix_cache_hits_total"] - before["prefix_cache_hits_total"]) / max(1.0, queries)


def _rival(c: Context, rep: int) -> dict[str, dict[str, float]]:
    """The same loads against llama-server on the same file; without those that fail.

    W4 in the first repetition only: cold it takes about 200 s here, and it reads the prompts of W4 warm again too.
    """
    from bench.load import measure

    port = free_port()
    found: dict[str, dict[str, float]] = {}
    try:
        with serve(rival_command(c, port), port=port, model="m") as server:
            for loads in (["W1", "W2", "W3"], ["W4"] if rep == 0 else []):
                if loads:
                    found |= asyncio.run(measure(server.url, "m", loads, rep=rep))
    except (RuntimeError, OctavoError, OSError) as error:
        print(f"  rival: {error}", file=sys.stderr)
    return found


BESIDE = {name: (name, key, unit, "") for name, (key, _, unit) in FLOORS.items()} | {
    "W4": ("W4 cold", "seconds", "s", "the rival's of one repetition, of about 200 s"),
    "W4warm": ("W4 warm", "seconds", "s", "the rival's of one repetition"),
}
"""Load -> title, figure, unit and what to say of it, for the rows beside the rival."""


def _beside(c: Context, mid: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> Iterator[Row]:
    for name, (title, key, unit, remark) in BESIDE.items():
        title = f"{title} beside llama-server, same file, same hour"
        recorded = f"recorded: {RECORDED[name]:g}" if name in RECORDED else ""
        if name not in other:
            why = "give --rival PATH of llama-server" if not c.rival else "the rival failed"
            yield not_run(SPEED, title, "reported", "; ".join(filter(None, (why, recorded))))
            continue
        ours, theirs = mid[name][key], other[name][key]
        times = theirs / ours if unit == "s" else ours / theirs
        note = "; ".join(filter(None, (unit, f"{times:.2f} x as fast", remark, recorded)))
        yield shown(SPEED, title, f"{ours:.4g} : {theirs:.4g}", note=note)


def perplexity(c: Context) -> Iterator[Row]:
    """The model as served against the oracle's fp32, pooled over its four texts."""
    oracle = next(iter(sorted((c.root / "tests").rglob("smollm2*q4_1.json"))), None)
    yield from quality(c, "9 Correctness", c.model, oracle, detail=True)


SQUEEZE = """
import json, sys
from octavo import LLM, SamplingParams
prompts = [[1000 + 37 * i + j for j in range(60 + i)] for i in range(20)]
params = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
blocks = -(-(80 + 48) // 16)
answers = []
for extra in ({}, {"num_kv_blocks": 1 + blocks + max(1, blocks // 5)}):
    with LLM(sys.argv[1], max_model_len=128, enable_prefix_caching=False, **extra) as llm:
        answers.append([o.outputs[0].token_ids for o in llm.generate(prompts, params)])
print(json.dumps({"finished": sum(len(a) == 48 for a in answers[1]), "same": answers[0] == answers[1]}))
"""


def squeezed(c: Context) -> Iterator[Row]:
    """R14: KV for 1.2 requests and 20 queued."""
    name, target = "KV for 1.2 requests, 20 queued: all finish, unchanged (R14)", "20 finished, same ids"
    done = subprocess.run([c.python, "-c", SQUEEZE, c.model], capture_output=True, text=True, timeout=900)
    if done.returncode:
        yield holds(SPEED, name, False, target=target, value="failed", note=done.stderr.strip()[-200:])
        return
    found = json.loads(done.stdout.splitlines()[-1])
    ok = found["finished"] == 20 and found["same"]
    value = f"{found['finished']}, {'same' if found['same'] else 'different'}"
    yield holds(SPEED, name, ok, target=target, value=value)


def does_not_fit(c: Context) -> Iterator[Row]:
    """R05, R06: refuse within 5 s, before loading weights, with the table and the largest setting that fits."""
    section = "5 Memory"
    command = c.octavo("serve", c.model, "--port", str(free_port()), "--kv-cache-memory-bytes", "100TiB")
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seconds = time.perf_counter() - began
    yield below(section, "a plan that cannot fit ends the start (R05)", seconds, 5.0, "s")
    advice = re.search(r"largest setting that fits: (--kv-cache-memory-bytes \d+)", done.stderr)
    ok = done.returncode != 0 and "Traceback" not in done.stderr and "KV cache" in done.stderr and advice is not None
    note = advice[1] if advice else done.stderr.strip()[-200:]
    value = f"exit {done.returncode}"
    yield holds(section, "... saying what would fit (R05)", ok, target="exit code, table", value=value, note=note)


def explained(c: Context) -> Iterator[Row]:
    done = subprocess.run(c.octavo("explain", c.model), capture_output=True, text=True, timeout=120)
    words = ("attend", "weights", "KV")
    ok = done.returncode == 0 and all(w.lower() in done.stdout.lower() for w in words)
    value = f"{len(done.stdout.splitlines())} lines"
    yield holds("3 Program", "octavo explain", ok, target="ops, memory, cost", value=value)


def mutants(c: Context) -> Iterator[Row]:
    """scripts/mutants.py: wrong lines in copies of the scheduler, each of which a test must notice."""
    section, name, target = "9 Correctness", "mutants of the scheduler killed", "12 or more, all"
    command = [sys.executable, str(c.root / "scripts" / "mutants.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    verdicts = [line.split(" ", 1)[0] for line in done.stdout.splitlines()]
    killed = verdicts.count("killed")
    others = sum(verdicts.count(word) for word in ("SURVIVED", "HUNG", "BROKEN"))
    ok = done.returncode == 0 and killed >= 12
    yield holds(section, name, ok, target=target, value=f"{killed} of {killed + others}")


def scheduler(c: Context) -> Iterator[Row]:
    """scripts/probes.py: what the scheduler alone costs on the fake, and that nothing of it grows."""
    command = [c.python, str(c.root / "scripts" / "probes.py"), "--timed", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if not done.stdout.startswith("["):
        note = done.stderr.strip()[-200:]
        yield holds("Scheduler", "probes of time", False, target="run", value="failed", note=note)
        return
    for finding in json.loads(done.stdout):
        value = f"{finding['value']:.4g}"
        yield holds("Scheduler", finding["name"], finding["passed"], target=finding["target"], value=value)


CHECKS: dict[str, Check] = {
    "compare": compared,
    "import": import_times,
    "explain": explained,
    "memory": does_not_fit,
    "mutants": mutants,
    "perplexity": perplexity,
    "start": start_idle_memory,
    "loads": loads,
    "squeeze": squeezed,
    "scheduler": scheduler,
}
