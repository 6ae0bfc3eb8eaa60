"""R15 with ten thousand requests open: the server answers, refuses one more at once, and keeps nothing of them."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.front import SECTION, ask, fake_command
from bench.machine import open_files, own_pss_mib
from bench.rows import Context, Row, at_most, below, holds, not_run, shown
from bench.serving import Server, free_port, serve

OPEN = 10_000
SPARE = 512
"""Files that server and client need beside the connections."""
PROBES = 200
AT_ONCE = 100
"""Connections that are being opened at a time: fewer than the server's backlog."""
LIMIT_MS = 50.0
FLAT = 3.0
"""Percent by which the front half may grow while requests are refused."""
LENGTH = 400_000
"""Positions of the one request that runs: it outlasts the figure."""


def crowd(c: Context) -> Iterator[Row]:
    """One request runs on the fake executor and 9,999 wait: what is measured is the front half."""
    if why := short_of_files(OPEN + SPARE):
        yield not_run(SECTION, f"{OPEN:,} requests open at once (R15)", f"{OPEN:,}", why)
        return
    port = free_port()
    flags = ("--max-num-seqs", "1", "--max-queue", str(OPEN - 1), "--max-open-requests", str(2 * OPEN))
    size = ("--max-model-len", str(LENGTH), "--num-kv-blocks", str(LENGTH // 16 + 2))
    with serve(fake_command(c, port, *flags, *size), port=port, model="m", prompt=(1, 2, 3)) as server:
        yield from _held(server, port, again=not c.quick)


def short_of_files(wanted: int) -> str:
    """Raise this process's soft limit of open files, which a server it starts inherits. Why not, where not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return f"needs {wanted:,} open files, and the hard limit is {hard:,}"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return ""


def _held(server: Server, port: int, *, again: bool) -> Iterator[Row]:
    files, before = open_files(server.pid), own_pss_mib(server.pid)
    began = time.monotonic()
    with Crowd(port, OPEN) as clients:
        count = _open_requests(server, OPEN)
        note = f"opened in {time.monotonic() - began:.1f} s"
        target = f"{OPEN:,}"
        yield holds(SECTION, "requests open at once (R15)", count == OPEN, target=target, value=f"{count:,}", note=note)
        memory = own_pss_mib(server.pid)
        health = [_probe(server, "/health") for _ in range(PROBES)]
        refused = [_probe(server, "/v1/completions", {"prompt": [1, 2], "max_tokens": 1}) for _ in range(PROBES)]
        grown = 100 * (own_pss_mib(server.pid) / memory - 1)
        right = sum(status == 503 and bool(wait) for status, wait, _ in refused)
        ok = right == PROBES and _open_requests(server, OPEN) == OPEN
        target, value = f"{PROBES} of {PROBES}", f"{right} of {PROBES}"
        yield holds(SECTION, "... one more is a 503 with Retry-After", ok, target=target, value=value)
        yield from _quick("... refused within", [seconds for *_, seconds in refused])
        alive = sum(status == 200 for status, *_ in health)
        value = f"{alive} of {PROBES}"
        yield holds(SECTION, "... /health is a 200 meanwhile", alive == PROBES, target=target, value=value)
        yield from _quick("... /health answers within", [seconds for *_, seconds in health])
        each = f"{1024 * (memory - before) / OPEN:.1f} KiB a request"
        yield shown(SECTION, "... memory of the front half (PSS)", f"{memory:.0f} MiB", note=each)
        yield at_most(SECTION, f"... which grows during {PROBES} refusals by", grown, FLAT, "%")
        lost = clients.lost
    yield _released(server, files, lost)
    if again:
        peak = max(memory, own_pss_mib(server.pid))  # that they all left at once took some too
        with Crowd(port, OPEN):
            _open_requests(server, OPEN)
            more = 100 * (own_pss_mib(server.pid) / peak - 1)
        yield at_most(SECTION, "... and is larger when as many come a second time by", more, FLAT, "%")


def _probe(server: Server, path: str, body: dict[str, Any] | None = None) -> tuple[int, str | None, float]:
    """Status, Retry-After, seconds until the head was there. The connection is closed."""
    status, response, seconds = ask(server, path, body)
    response.close()
    return status, response.headers.get("Retry-After"), seconds


def _released(server: Server, files: int, lost: int) -> Row:
    """`files`: what the server had open before; `lost`: connections that it ended itself."""
    began = time.monotonic()
    left, kept = _open_requests(server, 0), _files(server.pid, files)
    ok = left == kept == lost == 0 and server.metrics()["kv_cache_usage_perc"] == 0
    note = f"after {time.monotonic() - began:.1f} s; {lost} ended early; front half {own_pss_mib(server.pid):.0f} MiB"
    name, target, value = "... all released when their clients leave", "0 open, 0 files", f"{left} open, {kept} files"
    return holds(SECTION, name, ok, target=target, value=value, note=note)


def _quick(name: str, seconds: Sequence[float]) -> Iterator[Row]:
    ms = [1e3 * t for t in seconds]
    yield below(SECTION, f"{name}, median of {len(ms)}", statistics.median(ms), LIMIT_MS, "ms")
    yield below(SECTION, f"{name}, p99", statistics.quantiles(ms, n=100)[98], LIMIT_MS, "ms")


def _open_requests(server: Server, wanted: int) -> int:
    """Running and waiting, as the metrics say; waits up to a minute for `wanted`."""
    end = time.monotonic() + 60
    while True:
        metrics = server.metrics()
        count = round(metrics["num_requests_running"] + metrics["num_requests_waiting"])
        if count == wanted or time.monotonic() > end:
            return count
        time.sleep(0.1)


def _files(pid: int, before: int) -> int:
    """Descriptors beyond those `before`; connections take a moment to close."""
    end = time.monotonic() + 10
    while (more := open_files(pid) - before) > 0 and time.monotonic() < end:
        time.sleep(0.1)
    return max(0, more)


class _Client(asyncio.Protocol):
    """Sends one request and throws away what comes."""

    def __init__(self, crowd: Crowd, request: bytes) -> None:
        self._crowd, self._request = crowd, request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._crowd.transports.append(transport)
        transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._crowd.leaving:
            self._crowd.lost += 1


class Crowd:
    """So many clients with a streaming request each, on an event loop of their own, until the block ends."""

    def __init__(self, port: int, count: int) -> None:
        self.transports: list[asyncio.Transport] = []
        self.lost = 0
        """Connections that the server ended."""
        self.leaving = False
        self._port, self._count = port, count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Crowd:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(300)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        body = {"model": "m", "prompt": [1, 2], "max_tokens": LENGTH - 10, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: m\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        for first in range(0, self._count, AT_ONCE):
            part = range(first, min(first + AT_ONCE, self._count))
            await asyncio.gather(
                *(self._loop.create_connection(lambda: _Client(self, request), "127.0.0.1", self._port) for _ in part)
            )

    async def _leave(self) -> None:
        self.leaving = True
        for transport in self.transports:
            transport.abort()
        await asyncio.sleep(0)
