"""A start that is interrupted ends at once, with all its processes, whatever it waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo import AsyncLLM
from octavo.engine.remote import ProcClient
from octavo.engine.spawn import Spawned
from octavo.errors import EngineDead
from tests.child import child_env
from tests.engine.conftest import fake_args, gone, sockets

WITHIN = 3.0
"""Seconds; about one is meant, and machines of CI are slow."""
NEVER_READY = """
import sys, time
if "octavo.engine.proc" in sys.orig_argv:
    time.sleep(600)
"""
OFFLINE = """
from octavo import LLM
from octavo.executor import fake

class Hangs(fake.FakeExecutor):
    def __init__(self, *_):
        import time
        print("loading", flush=True)
        time.sleep(600)

fake.FakeExecutor = Hangs
LLM("fake", executor="fake")
"""


def children(pid: int) -> list[int]:
    """Processes that it started and that run still."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in lists for word in text.split() if not gone(int(word))]


def until(found: Callable[[], bool], *, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """A job in the background starts with SIGINT ignored; here it is a terminal's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.5])
def test_a_cancelled_start_of_an_engine_that_never_gets_ready(delay: float) -> None:
    before = sockets()

    async def run() -> None:
        with Spawned("fake") as spawned:
            os.kill(spawned.process.pid, signal.SIGSTOP)
            starting = asyncio.create_task(AsyncLLM.start(fake_args(), spawned=spawned))
            await asyncio.sleep(delay)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert gone(spawned.process.pid)

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < delay + WITHIN and sockets() == before


def test_a_client_comes_too_late() -> None:
    spawned = Spawned("fake")
    spawned.close()
    with pytest.raises(EngineDead, match="closed before"):
        ProcClient.start(fake_args(), spawned=spawned)
    with pytest.raises(EngineDead, match="closed before"):
        spawned.helper("octavo.engine.find")


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("serve", signal.SIGTERM, 0),
        ("serve", signal.SIGINT, 0),
        ("run", signal.SIGINT, 130),
        ("chat", signal.SIGINT, 130),
    ],
)
def test_a_command_whose_engine_never_gets_ready(
    command: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    before = sockets()
    (tmp_path / "sitecustomize.py").write_text(NEVER_READY)
    env = child_env()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    more = {"serve": ["--port", "0"], "run": ["hello"], "chat": []}[command]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo", command, "fake", "--executor", "fake", *more],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: bool(children(process.pid)))
        (engine,) = children(process.pid)
        time.sleep(1.5)
        assert process.poll() is None and not gone(engine)
        process.send_signal(number)
        began = time.monotonic()
        assert process.wait(20) == code
        assert time.monotonic() - began < WITHIN
        assert gone(engine) and sockets() == before
    finally:
        left = [process.pid, *children(process.pid)] if process.poll() is None else []
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        _, said = process.communicate()
    assert "Traceback" not in said


def test_ctrl_c_while_the_engine_in_process_loads() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OFFLINE], env=child_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(20) == -signal.SIGINT
        assert time.monotonic() - began < WITHIN
    finally:
        process.kill()
        _, said = process.communicate()
    assert said.splitlines()[-1] == "KeyboardInterrupt"
