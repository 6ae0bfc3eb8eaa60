"""What the front end promises under pressure: refusals at once, /health through long prompts, a dead engine seen."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.machine import tree
from bench.rows import Context, Row, at_most, below, holds
from bench.serving import Server, free_port, serve

SECTION = "8 Server"
LONG = "A word, then 12 more;\n" * 24_000
"""More than 200,000 tokens."""
PROMPT = (1, 2, 3)


def front(c: Context) -> Iterator[Row]:
    """On the fake executor where no tokenizer is needed: what is measured is the front end, whatever the model."""
    yield from _refusals(c)
    yield from _health(c)
    yield from _death(c)


def fake_command(c: Context, port: int, *flags: str) -> list[str]:
    """A server of the model `m` on the fake executor."""
    base = ("serve", "fake", "--executor", "fake", "--served-model-name", "m", "--port", str(port))
    return c.octavo(*base, *flags)


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> tuple[int, http.client.HTTPResponse, float]:
    """Status, response and seconds until its head is there; the body is read when it is an error."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    began = time.perf_counter()
    data = None if body is None else json.dumps({"model": "m", **body})
    connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response, time.perf_counter() - began


def _ask_quietly(server: Server, body: dict[str, Any]) -> None:
    """A request that waits until the server stops."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(server, "/v1/completions", body)


def _refusals(c: Context) -> Iterator[Row]:
    port = free_port()
    flags = ("--max-num-seqs", "1", "--max-queue", "1", "--max-model-len", "100000", "--num-kv-blocks", "20000")
    with serve(fake_command(c, port, *flags), port=port, model="m", prompt=PROMPT) as server:
        wrong = [ask(server, "/v1/completions", {"prompt": "x", "temperature": -1}) for _ in range(20)]
        held = {"prompt": [1, 2], "max_tokens": 90_000, "ignore_eos": True, "stream": True}
        open_streams = [ask(server, "/v1/completions", held) for _ in range(1)]
        threading.Thread(target=_ask_quietly, args=(server, held), daemon=True).start()
        time.sleep(0.3)
        full = [ask(server, "/v1/completions", held) for _ in range(20)]
        refused = all(status == 503 and response.headers.get("Retry-After") for status, response, _ in full)
        for _, response, _ in open_streams:
            response.close()
    yield holds(SECTION, "a full queue is a 503 with Retry-After (R15)", refused, target="20 of 20", value=str(refused))
    yield below(SECTION, "... refused within, worst of 20 (R15)", 1e3 * max(t for *_, t in full), 50.0, "ms")
    told = sum(status == 400 for status, *_ in wrong)
    yield holds(SECTION, "a bad field is a 400 (S09)", told == len(wrong), target="20 of 20", value=str(told))
    yield below(SECTION, "... refused within, worst of 20 (S09)", 1e3 * max(t for *_, t in wrong), 100.0, "ms")


def _health(c: Context) -> Iterator[Row]:
    """Two clients send prompts that are tokenised and then found too long, one behind the other."""
    port = free_port()
    command = c.octavo("serve", c.model, "--served-model-name", "m", "--port", str(port))
    with serve(command, port=port, model="m") as server:
        stop, answers = threading.Event(), []

        def send() -> None:
            while not stop.is_set():
                status, response, _ = ask(server, "/v1/completions", {"prompt": LONG, "max_tokens": 1})
                response.read()
                answers.append(status)

        clients = [threading.Thread(target=send) for _ in range(2)]
        for client in clients:
            client.start()
        times, end = [], time.monotonic() + (5 if c.quick else 15)
        while time.monotonic() < end:
            times.append(ask(server, "/health")[2])
            time.sleep(0.02)
        stop.set()
        for client in clients:
            client.join()
    worst = 1e3 * statistics.quantiles(times, n=100)[98]
    note = f"{len(times)} calls during {len(answers)} prompts of {len(LONG):,} characters, answered {set(answers)}"
    yield below(SECTION, "/health p99 while 200k-token prompts come in (R16)", worst, 50.0, "ms", note=note)


def _death(c: Context) -> Iterator[Row]:
    port = free_port()
    with serve(fake_command(c, port), port=port, model="m", prompt=PROMPT) as server:
        (engine,) = [p for p in tree(server.pid)[1:] if "octavo.engine.proc" in _words(p)]
        os.kill(engine, signal.SIGKILL)
        began = time.perf_counter()
        while ask(server, "/health")[0] == 200 and time.perf_counter() - began < 10:
            time.sleep(0.01)
        seconds = time.perf_counter() - began
    yield at_most(SECTION, "a killed engine shows in /health within", seconds, 1.0, "s")


def _words(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode(errors="replace").replace("\0", " ")
