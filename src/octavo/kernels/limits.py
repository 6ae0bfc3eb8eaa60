"""What this machine gives our kernels at most: bytes a second from memory, operations a second in each format.

`read` is a float32 linear of one row over weights several times the last cache: it does nothing but read them. A peak
is what 240 rows more cost a linear whose weight stays in the caches (2 operations a multiply-add): the ceiling of the
kernel itself, so that a share of it says how far a shape is from the best one. All takes under 3 seconds and is kept in
a file, by processor, instruction set, number of threads and build of the kernels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.kernels.machine import cpu_name, last_level_cache

LEAST_POOL, MOST_POOL = 96 << 20, 1 << 30
SECONDS = 0.12
"""Spent on one cell."""
READ = (1024, 8192)
PEAK = (240, 512, 64)
"""Rows, k, and n for each thread."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one processor, instruction set and number of threads."""

    cpu: str
    isa: str
    threads: int
    cache_bytes: int
    """Of the last cache."""
    read: float
    """Bytes a second."""
    peaks: dict[str, float]
    """Execution format -> operations a second."""


def best(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """The fastest of many calls, in seconds."""
    fastest = float("inf")
    end = time.perf_counter() + seconds
    count = 0
    while count < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
        count += 1
    return fastest


class Meter:
    """Times linears with one instruction set and thread count; weights lie in an arena on large pages."""

    def __init__(self, isa: str, threads: int, *, pool: int = 128 << 20) -> None:
        self.isa, self.pool = isa, pool
        self.team = _native.Team(threads)
        self.arena = _native.Arena(pool + (2 << 20), True)
        view = self.arena.view(0, pool)
        rng = np.random.default_rng(0)
        piece = rng.integers(0, 1024, 1 << 20, dtype=np.uint16) | np.uint16(0x2C01)  # small positive halves, no byte 0
        raw = piece.view(np.uint8)
        for at in range(0, pool, raw.size):
            view[at : at + raw.size] = raw[: pool - at]

    def rows(self, kind: str, m: int, k: int) -> NDArray[np.uint8]:
        """m rows of k activations of dtype `kind` (f32, bf16, q8, q8t)."""
        out = np.zeros(m * _native.row_bytes(kind, k), np.uint8)
        x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
        if kind in ("q8", "q8t"):
            _native.quantize_rows(self.team, self.isa, x, out, token=kind == "q8t")
        elif kind == "f32":
            out.reshape(m, -1)[:, : 4 * k] = x.view(np.uint8)
        else:
            out.reshape(m, -1)[:, : 2 * k] = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return out

    def seconds(self, fmt: str, m: int, k: int, n: int, *, activation: str = "", cached: bool = False) -> float:
        """Of one linear [m, k] x [n, k] in `fmt`; its weight is another one each time unless `cached`."""
        size = _native.packed_bytes(fmt, n, k)
        copies = 1 if cached else max(1, self.pool // size)
        weights = [self.arena.view(i * size, size) for i in range(copies)]
        x = self.rows(activation or {"f32": "f32", "bf16": "bf16", "int8t": "q8t"}.get(fmt, "q8"), m, k)
        out = np.zeros(m * _native.row_bytes("f32", n), np.uint8)
        turn = iter(range(1 << 62))

        def call() -> None:
            _native.linear(self.team, self.isa, fmt, n, k, weights[next(turn) % copies], x, m, out)

        return best(call)

    def read(self) -> float:
        """Bytes a second."""
        k, n = READ
        return _native.packed_bytes("f32", n, k) / min(self.seconds("f32", 1, k, n) for _ in range(3))

    def peak(self, fmt: str, *, activation: str = "") -> float:
        """Operations a second."""
        m, k, n = PEAK[0], PEAK[1], PEAK[2] * self.team.threads
        one, two = (self.seconds(fmt, rows, k, n, activation=activation, cached=True) for rows in (m, 2 * m))
        return 2.0 * m * k * n / (two - one if two > one else two / 2)

    def close(self) -> None:
        self.team.close()


def machine_limits(
    formats: Mapping[str, str], *, threads: int, file: Path | None = None, remeasure: bool = False
) -> Limits:
    """The limits for `formats` (execution format -> dtype of its activations), measured now or earlier.

    `file` keeps them; one that cannot be read or written does no harm. `remeasure` forgets what it has.
    """
    cpu, isa = cpu_name(), _native.isa()
    where = f"{cpu}, {isa}, {threads} threads, "
    key = f"{where}{PEAK}, {_module()}"  # what was measured otherwise, or of other kernels, is another limit
    stored = {k: v for k, v in _load(file).items() if k == key or not k.startswith(where)}
    known = None if remeasure else stored.get(key)
    missing = [f for f in formats if known is None or f not in known.peaks]
    if known is not None and not missing:
        return known
    cache = last_level_cache()
    meter = Meter(isa, threads, pool=min(MOST_POOL, max(LEAST_POOL, 3 * cache)))
    try:
        peaks = dict(known.peaks) if known is not None else {}
        peaks |= {fmt: meter.peak(fmt, activation=formats[fmt]) for fmt in missing}
        read = meter.read() if known is None else known.read
    finally:
        meter.close()
    found = Limits(cpu=cpu, isa=isa, threads=threads, cache_bytes=cache, read=read, peaks=peaks)
    _save(file, {**stored, key: found})
    return found


def _module() -> str:
    """Tells one build of the kernels from another."""
    built = Path(_native.__file__).stat()
    return f"module of {built.st_size} bytes at {built.st_mtime_ns}"


def _load(file: Path | None) -> dict[str, Limits]:
    if file is None:
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Limits])
    except (OSError, msgspec.DecodeError):
        return {}


def _save(file: Path | None, limits: Mapping[str, Limits]) -> None:
    if file is None:
        return
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(limits), indent=2))
        part.replace(file)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
