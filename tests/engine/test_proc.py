"""The engine process: how it starts, dies, and is never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import uvloop
import zmq

from octavo import AsyncLLM, EngineArgs, SamplingParams
from octavo.engine.front import Front
from octavo.engine.messages import Start, encode
from octavo.engine.proc import EngineProcess
from octavo.engine.remote import ProcClient
from octavo.engine.spawn import Spawned
from octavo.engine.stepper import Stepper
from octavo.errors import EngineDead, FetchError, ModelError
from octavo.types import FinishReason, Request
from tests.child import child_env
from tests.engine.conftest import fake_args, gone, sockets, with_async

ENDLESS = SamplingParams(max_tokens=4000, ignore_eos=True)


def wait_until_gone(pid: int, *, within: float) -> None:
    began = time.monotonic()
    while not gone(pid):
        assert time.monotonic() - began < within, f"process {pid} is still there"
        time.sleep(0.01)


def test_start_serve_stop() -> None:
    before = sockets()
    seen: list[Front] = []
    client = ProcClient.start(fake_args(), on_front=seen.append)
    (directory,) = sockets() - before
    assert Path(directory).stat().st_mode & 0o777 == 0o700, "S03: only this user reaches the socket"
    assert os.getsid(client.pid) == client.pid, "Ctrl-C in our terminal does not reach it"
    assert client.facts.architecture == "fake" and seen == [client.front]
    client.add([Request(1, b"\1\0\0\0", SamplingParams(seed=1, max_tokens=3, ignore_eos=True))])
    ids: list[int] = []
    while len(ids) < 3:
        message = client.poll(5.0)
        assert message is not None
        assert len(message.outputs) <= 1
        ids += [i for out in message.outputs for i in out.new_ids]
    assert message.outputs[0].finish is FinishReason.LENGTH and client.stats.blocks_used == 0
    assert client.poll(0.05) is None
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 20.0 and gone(client.pid) and sockets() == before
    client.close()
    with pytest.raises(EngineDead, match="closed"):
        client.add([])


def test_a_process_begun_before_its_client() -> None:
    """It is there, and tries to connect, before anybody listens."""
    before = sockets()
    with Spawned("fake") as spawned:
        time.sleep(0.4)
        client = ProcClient.start(fake_args(), spawned=spawned)
        assert client.pid == spawned.process.pid and client.facts.architecture == "fake"
        client.close()
    assert gone(client.pid) and sockets() == before


def test_a_process_that_no_client_took() -> None:
    before = sockets()
    with pytest.raises(KeyboardInterrupt), Spawned("fake") as spawned:
        raise KeyboardInterrupt
    assert gone(spawned.process.pid) and sockets() == before


def test_an_engine_that_dies_while_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its state and the word to stop."""
    before = sockets()
    client = ProcClient.start(fake_args())
    os.kill(client.pid, signal.SIGKILL)
    client._process.wait()
    seen: list[int | None] = [None]
    monkeypatch.setattr(client._process, "poll", lambda: seen.pop() if seen else -signal.SIGKILL)
    client.close()
    client.close()
    assert sockets() == before and client._context.closed
    with pytest.raises(EngineDead, match="closed"):
        client.check()


def test_no_listening_inet_socket() -> None:
    """S03: what the engine listens on is a unix socket."""
    client = ProcClient.start(fake_args())
    try:
        inodes = {os.readlink(p) for p in Path(f"/proc/{client.pid}/fd").iterdir() if p.exists() or p.is_symlink()}
        listening: set[str] = set()
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{client.pid}/net/{table}").read_text().splitlines()[1:]:
                listening.add(f"socket:[{line.split()[9]}]")
        assert inodes.isdisjoint(listening)
    finally:
        client.close()


def test_a_start_that_fails_is_typed_and_leaves_nothing(tmp_path: Path) -> None:
    before = sockets()
    with pytest.raises((ModelError, FetchError)) as caught:
        ProcClient.start(EngineArgs(model=str(tmp_path / "none.gguf"), executor="reference", offline=True))
    assert "none.gguf" in str(caught.value) and "Traceback" not in str(caught.value)
    assert sockets() == before


def test_a_front_that_cannot_be_built_ends_the_engine() -> None:
    before = sockets()

    def refuse(front: Front) -> None:
        raise ModelError("no such tokenizer")

    with pytest.raises(ModelError, match="no such tokenizer"):
        ProcClient.start(fake_args(), on_front=refuse)
    assert sockets() == before


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_is_noticed_within_a_second(number: signal.Signals, loop_factory: Any) -> None:
    """R11: every open request ends with an error, and the health check says so."""

    async def test(llm: AsyncLLM) -> None:
        async def one(prompt: str) -> float:
            with pytest.raises(EngineDead, match="has died"):
                async for _ in llm.generate(prompt, ENDLESS):
                    pass
            return time.monotonic()

        open_requests = [asyncio.create_task(one(f"{i}" * 9)) for i in range(20)]
        await asyncio.sleep(0.1)
        llm.check_health()
        os.kill(llm.engine_pid, number)
        began = time.monotonic()
        ended = await asyncio.gather(*open_requests)
        assert max(ended) - began < 1.0
        with pytest.raises(EngineDead):
            llm.check_health()
        with pytest.raises(EngineDead):
            async for _ in llm.generate("x", ENDLESS):
                pass
        assert llm.num_open == 0

    with_async(test, loop_factory=loop_factory)


def test_an_engine_that_dies_while_idle_is_noticed() -> None:
    async def test(llm: AsyncLLM) -> None:
        os.kill(llm.engine_pid, signal.SIGKILL)
        await asyncio.sleep(0.5)
        with pytest.raises(EngineDead, match="SIGKILL"):
            llm.check_health()

    with_async(test)


def test_ctrl_c_does_not_reach_the_engine() -> None:
    async def test(llm: AsyncLLM) -> None:
        os.kill(llm.engine_pid, signal.SIGINT)
        outputs = [o async for o in llm.generate("x", SamplingParams(max_tokens=5, ignore_eos=True))]
        assert outputs[-1].finished

    with_async(test)


PARENT = """
import asyncio, sys
from octavo import AsyncLLM, EngineArgs, SamplingParams

async def main():
    llm = await AsyncLLM.start(EngineArgs(model="fake", executor="fake"))
    print(llm.engine_pid, flush=True)
    busy = "busy" in sys.argv
    async for _ in llm.generate("x", SamplingParams(max_tokens=8000 if busy else 1, ignore_eos=True)):
        if busy:
            await asyncio.sleep(0.05)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["idle", "busy"])
def test_sigkill_of_the_parent_leaves_no_engine(mode: str) -> None:
    """R10."""
    before = sockets()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, mode], stdout=subprocess.PIPE, env=child_env())
    assert parent.stdout is not None
    engine = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    wait_until_gone(engine, within=5.0)
    parent.stdout.close()
    deadline = time.monotonic() + 1.0
    while sockets() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sockets() == before


def test_a_parent_that_ends_without_closing_leaves_no_engine() -> None:
    parent = subprocess.run(
        [sys.executable, "-c", PARENT.replace("await asyncio.sleep(60)", "")],
        capture_output=True,
        env=child_env(),
        timeout=30,
    )
    assert parent.returncode == 0, parent.stderr.decode()
    wait_until_gone(int(parent.stdout), within=5.0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wakes(pid: int) -> int:
    """How often a process's threads went to sleep and came back."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def test_an_idle_engine_neither_spins_nor_polls() -> None:
    """R35; the share of a core is a figure, `scripts/accept --only start` judges it."""

    async def test(llm: AsyncLLM) -> None:
        _ = [o async for o in llm.generate("x", SamplingParams(max_tokens=50, ignore_eos=True))]
        await asyncio.sleep(0.2)
        pids = llm.engine_pid, os.getpid()
        seconds, woken = sum(map(cpu_seconds, pids)), sum(map(wakes, pids))
        await asyncio.sleep(3.0)
        assert sum(map(wakes, pids)) - woken < 30  # one was seen: the sleep above
        assert sum(map(cpu_seconds, pids)) - seconds < 1.0

    with_async(test)


@pytest.mark.parametrize("pieces", [0, 3, None])
def test_rest_makes_memory_ready_until_a_message_comes(pieces: int | None) -> None:
    """`pieces` is how much there is to do, None: without end."""
    context = zmq.Context()
    engine, front = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    engine.bind("inproc://rest")
    front.connect("inproc://rest")
    wake, other = os.pipe()
    made = 0

    def prepare() -> bool:
        nonlocal made
        if made == (5 if pieces is None else pieces):
            front.send(b"work")  # comes while memory is made ready, or while nothing is left to do
            return pieces is None
        made += 1
        return True

    stepper = SimpleNamespace(core=SimpleNamespace(prepare=prepare))
    try:
        EngineProcess(engine, wake, cast(Stepper, stepper))._rest()
        assert made == (5 if pieces is None else pieces)
        assert engine.recv(zmq.NOBLOCK) == b"work"
        front.send(b"at once")
        EngineProcess(engine, wake, cast(Stepper, stepper))._rest()
        assert made == (5 if pieces is None else pieces), "an engine with a message waiting does nothing else"
    finally:
        for descriptor in (wake, other):
            os.close(descriptor)
        context.destroy()


def test_a_cancelled_start_ends_the_engine() -> None:
    before = sockets()

    async def run() -> None:
        starting = asyncio.create_task(AsyncLLM.start(fake_args()))
        await asyncio.sleep(0.02)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    deadline = time.monotonic() + 5.0
    while sockets() != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sockets() == before


def test_who_finds_the_socket_closed_hears_why() -> None:
    """Between the end of the engine's socket and that of its process: a send fails, and the reason is still to come."""

    async def test(llm: AsyncLLM) -> None:
        llm._client._socket.send(encode(Start(fake_args())))
        await asyncio.sleep(0)
        with pytest.raises(EngineDead, match="started twice"):
            while True:  # from the moment it dies until it is known to be dead
                llm._client.add([])

    with_async(test)


def test_an_error_of_the_engine_itself_is_its_last_word() -> None:
    async def test(llm: AsyncLLM) -> None:
        # What no front half would say: the process must not hang on it, and must tell why it ended.
        llm._client._socket.send(encode(Start(fake_args())))
        with pytest.raises(EngineDead, match="started twice"):
            async for _ in llm.generate("x", ENDLESS):
                pass
        with pytest.raises(EngineDead, match="exit code 1"):
            llm.check_health()

    with_async(test)


def test_a_message_that_cannot_be_read_ends_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    async def test(llm: AsyncLLM) -> None:
        async def other() -> int:
            outputs = [o async for o in llm.generate("others", SamplingParams(max_tokens=200, ignore_eos=True))]
            return len(outputs[-1].outputs[0].token_ids)

        going = asyncio.create_task(other())
        await asyncio.sleep(0.05)
        for junk in (
            b"",
            b"junk",
            b"\xc1",
            b"\x91" * 5000,
            b"\x92\xa3Add\x91\xa1\xff",
            msgspec.msgpack.encode(["Abort", ["all"]]),
            msgspec.msgpack.encode(["Add", 5]),
            msgspec.msgpack.encode(["Add", [5, [], ["x"]]]),
            msgspec.msgpack.encode(["Add", [[2**40, b"\1\0\0\0", {"temperature": -1.0}]]]),
        ):
            llm._client._socket.send(junk)
        assert await going == 200
        llm.check_health()

    with_async(test)
    said = capfd.readouterr().err
    assert said.count("a message is dropped") == 8
    assert f"requests {2**40} are refused: temperature: got -1.0" in said


def test_a_request_that_cannot_be_read_is_refused_alone() -> None:
    """What our own front half would not send: it is answered, and hangs nobody."""
    client = ProcClient.start(fake_args())
    try:
        bad = msgspec.msgpack.encode(["Add", [[7, b"\1\0\0\0", {"ignore_eos": "no"}]]])
        client._socket.send(bad)
        client.add([Request(8, b"\1\0\0\0", SamplingParams(seed=1, max_tokens=3, ignore_eos=True))])
        refused: list[int] = []
        ids: list[int] = []
        while len(ids) < 3 or not refused:
            message = client.poll(5.0)
            assert message is not None
            refused += [each.seq_id for each in message.refused]
            ids += [i for out in message.outputs for i in out.new_ids]
        assert refused == [7] and len(ids) == 3
        client.check()
    finally:
        client.close()
