"""Probes that time something: a figure, judged by `scripts/accept --only scheduler`, not by a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.probes.decode import decode
from bench.probes.play import Finding, at_most
from octavo.config.scheduler import SchedulerConfig
from octavo.executor.fake import fake_facts
from octavo.sched.scheduler import Scheduler


@contextmanager
def collector_off() -> Iterator[None]:
    """What the engine's process does while it serves."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def microseconds(streams: int, context: int, *, num_blocks: int = 0, rounds: int = 9) -> float:
    """Per sequence and step: the best of several stretches of 16 steps (a whole block), with the collector off, as in
    the engine's process."""
    best, spent, halves = float("inf"), 0.0, 0
    with collector_off():
        for call in decode(streams, context, num_blocks=num_blocks, rounds=rounds):
            begin = time.thread_time()
            call()
            spent += time.thread_time() - begin
            halves += 1
            if halves % 32 == 0:
                best, spent = min(best, spent), 0.0
    return best / 16 / streams * 1e6


def cost() -> Iterator[Finding]:
    """CPU time, since other programs take turns on the same cores; ratios are between the best of interleaved runs."""
    runs = [
        (
            microseconds(64, 256),
            microseconds(1024, 256, rounds=4),
            microseconds(64, 8192),
            microseconds(64, 256, num_blocks=2**21),
        )
        for _ in range(3)
    ]
    few, many, far, large = (min(column) for column in zip(*runs, strict=True))
    yield at_most("schedule + update + encoding at 64 streams, microseconds a sequence and step", few, 6.0)
    yield at_most("the same at 1,024 streams, over that at 64", many / few, 1.2)
    yield at_most("the same at contexts of 8,192, over that at 256", far / few, 1.2)
    yield at_most("the same in a pool of 2 million blocks, over that", large / few, 1.2)
    begin = time.thread_time()
    Scheduler(SchedulerConfig(), fake_facts(num_blocks=2**21))
    yield at_most("milliseconds to make a scheduler over 2 million blocks", (time.thread_time() - begin) * 1e3, 20)


TIMED = (cost,)
