"""What probes are made of: requests, a scheduler to play with, and findings."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.fake import FakeExecutor, fake_facts
from octavo.facts import Facts
from octavo.sched.scheduler import Scheduler
from octavo.types import Request, SamplingParams


@dataclass(frozen=True)
class Finding:
    name: str
    value: float
    target: str
    passed: bool

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'MISSED'}  {self.name:<78} {self.value:>10.4g}  ({self.target})"


def at_most(name: str, value: float, bound: float) -> Finding:
    return Finding(name, value, f"at most {bound:g}", value <= bound)


def exactly(name: str, value: float, wanted: float) -> Finding:
    return Finding(name, value, f"exactly {wanted:g}", value == wanted)


def request(
    seq_id: int, prompt: list[int], max_tokens: int, *, priority: int = 0, root: bytes = b"", **params: Any
) -> Request:
    made = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **params)
    return Request(seq_id, array("i", prompt).tobytes(), made, arrival=float(seq_id), priority=priority, root=root)


def numbers(length: int, *, base: int = 0) -> list[int]:
    """A prompt that shares no block with one of another base."""
    return [(base * 31 + i * (1 + base % 7)) % 64 for i in range(length)]


class Bench:
    """A scheduler with the fake below it, and a way to play it."""

    def __init__(
        self,
        *,
        num_blocks: int = 4001,
        block_size: int = 16,
        depth: int = 1,
        windows: Sequence[int | None] = (None,),
        **config: Any,
    ) -> None:
        self.facts: Facts = fake_facts(num_blocks=num_blocks, block_size=block_size, model_len=2**20, windows=windows)
        self.scheduler = Scheduler(SchedulerConfig(**config), self.facts, clock=lambda: 0.0)
        self.core = EngineCore(self.scheduler, FakeExecutor(self.facts), depth=depth)
        self.answers: dict[int, list[int]] = {}
        self.arrived: dict[int, list[int]] = {}
        """Per sequence, the steps that gave it tokens."""
        self.steps = 0

    def add(self, *requests: Request) -> None:
        for one in requests:
            refused = self.core.add(one)
            assert refused is None, refused

    def step(self) -> None:
        for output in self.core.step():
            self.answers.setdefault(output.seq_id, []).extend(output.new_ids)
            self.arrived.setdefault(output.seq_id, []).append(self.steps)
        self.steps += 1

    def drain(self, *, limit: int = 20_000) -> None:
        while self.core.has_work:
            self.step()
            assert self.steps < limit, "no end"
        self.scheduler.check()
