"""What this machine gives our kernels at most, now: bytes a second from memory, operations a second by format."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo import _native

LEAST_POOL, MOST_POOL = 96 << 20, 1 << 30
SECONDS = 0.12
"""Spent on one reading; a bandwidth is the best of three."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def best(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """The fastest of many calls, in seconds."""
    fastest, count = float("inf"), 0
    end = time.perf_counter() + seconds
    while count < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
        count += 1
    return fastest


def last_level_cache() -> int:
    """Bytes of the largest cache, 0 where it is not said."""
    sizes = [0]
    for path in CACHES.glob("index*/size"):
        try:
            sizes.append(int(path.read_text().strip().removesuffix("K")) << 10)
        except (OSError, ValueError):
            continue
    return max(sizes)


class Meter:
    """Times linears with one instruction set and thread count; weights lie in an arena on large pages."""

    def __init__(self, isa: str, threads: int) -> None:
        self.isa = isa
        self.pool = min(MOST_POOL, max(LEAST_POOL, 3 * last_level_cache()))
        self.team = _native.Team(threads)
        self.arena = _native.Arena(self.pool + (2 << 20), True)
        view = self.arena.view(0, self.pool)
        piece = np.random.default_rng(0).integers(0, 1024, 1 << 20, dtype=np.uint16) | np.uint16(0x2C00)
        raw = piece.view(np.uint8)  # small positive halves: no scale is a NaN or denormal
        for at in range(0, self.pool, raw.size):
            view[at : at + raw.size] = raw[: self.pool - at]

    def read(self) -> float:
        """Bytes a second: a float32 linear of one row over a pool no cache holds does nothing but read its weight."""
        k, n = 1024, 8192
        return _native.packed_bytes("f32", n, k) / min(
            self._seconds("f32", 1, k, n, activation="f32") for _ in range(3)
        )

    def peak(self, fmt: str, *, activation: str = "") -> float:
        """Operations a second (2 a multiply-add): many rows over a weight that stays in the first-level cache.

        The ceiling of the format's own kernel: a share of it says how far a shape is from the best one."""
        m, k, n = 240, 256, 32 * self.team.threads
        return 2.0 * m * k * n / self._seconds(fmt, m, k, n, activation=activation, cached=True)

    def close(self) -> None:
        self.team.close()

    def _seconds(self, fmt: str, m: int, k: int, n: int, *, activation: str, cached: bool = False) -> float:
        """Of one linear [m, k] x [n, k]; its weight is another one each time unless `cached`."""
        size = _native.packed_bytes(fmt, n, k)
        copies = 1 if cached else max(1, self.pool // size)
        weights = [self.arena.view(i * size, size) for i in range(copies)]
        x = self._rows(activation, m, k)
        out = np.zeros(m * _native.row_bytes("f32", n), np.uint8)
        turn = iter(range(1 << 62))
        return best(lambda: _native.linear(self.team, self.isa, fmt, n, k, weights[next(turn) % copies], x, m, out))

    def _rows(self, kind: str, m: int, k: int) -> NDArray[np.uint8]:
        """m rows of k activations of dtype `kind` (f32, bf16, q8)."""
        out = np.zeros(m * _native.row_bytes(kind, k), np.uint8)
        x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
        if kind == "q8":
            _native.quantize_rows(self.team, self.isa, x, out)
        elif kind == "f32":
            out.reshape(m, -1)[:, : 4 * k] = x.view(np.uint8)
        else:
            out.reshape(m, -1)[:, : 2 * k] = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return out
