"""Engines on the fake executor."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, EngineArgs
from octavo.executor import Executor
from octavo.types import StepPlan, StepResult


def fake_args(**fields: Any) -> EngineArgs:
    """Small enough to be full, large enough to hold a few."""
    given = {
        "model": "fake",
        "executor": "fake",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 4096,
    }
    return EngineArgs(**(given | fields))


@pytest.fixture
def llm() -> Any:
    with LLM(fake_args()) as made:
        yield made


def with_async(
    test: Callable[[AsyncLLM], Coroutine[Any, Any, None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **fields: Any,
) -> None:
    """Run `test` against a fresh engine process, on the standard event loop or the server's (uvloop)."""

    async def run() -> None:
        async with await AsyncLLM.start(fake_args(**fields)) as made:
            await asyncio.wait_for(test(made), 60)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def empty(llm: AsyncLLM, *, within: float = 2.0) -> None:
    """Wait until the engine holds nothing: no sequence, no block."""
    deadline = time.monotonic() + within
    while True:
        stats = llm.stats()
        if (stats.running, stats.waiting, stats.blocks_used, llm.num_open) == (0, 0, 0, 0):
            return
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.01)


class Watched:
    """Between the loop and an executor: counts what is in flight, and sees that nothing runs on a step that failed."""

    def __init__(self, executor: Executor) -> None:
        self.facts = executor.facts
        self.most = 0
        """Most plans submitted and not collected."""
        self.chained = 0
        """Plans with a sequence that a plan in flight had too."""
        self._executor = executor
        self._slots: deque[set[int]] = deque()
        self._void = 0

    def submit(self, plan: StepPlan) -> None:
        slots = {row.slot for row in plan.seqs}
        self.chained += any(slots & others for others in self._slots)
        self._slots.append(slots)
        self.most = max(self.most, len(self._slots))
        self._executor.submit(plan)

    def collect(self) -> StepResult:
        self._slots.popleft()
        result = self._executor.collect()
        if self._void:
            assert result.error is not None, "it ran, though a step before it had failed"
            self._void -= 1
        elif result.error is not None:
            self._void = len(self._slots)
        return result

    def close(self) -> None:
        self._executor.close()


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie counts)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(autouse=True, scope="session")
def own_temporary_folder() -> Iterator[None]:
    """A folder of this run alone, so that engines of other programs are not counted; short, as socket paths must be."""
    folder = tempfile.mkdtemp(prefix="oct", dir="/tmp")
    before, tempfile.tempdir = tempfile.tempdir, folder
    environment, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), folder
    yield
    tempfile.tempdir = before
    os.environ.pop("TMPDIR")
    if environment is not None:
        os.environ["TMPDIR"] = environment
    shutil.rmtree(folder, ignore_errors=True)


def sockets() -> set[str]:
    """Private directories of engines."""
    return {str(p) for p in Path(tempfile.gettempdir()).glob("octavo-engine-*")}
