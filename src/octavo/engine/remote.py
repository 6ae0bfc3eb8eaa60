"""The engine in a process of its own, seen from the front half."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Literal

import zmq

from octavo.config.args import EngineArgs
from octavo.engine.build import read_front
from octavo.engine.find import find_for
from octavo.engine.front import Front
from octavo.engine.messages import (
    Abort,
    Add,
    Down,
    EngineStats,
    Failed,
    Hello,
    Outputs,
    Progress,
    Ready,
    ResetPrefixCache,
    Start,
    Stop,
    Up,
    decode_up,
    encode,
)
from octavo.engine.spawn import Spawned
from octavo.errors import EngineDead
from octavo.obs.log import get_logger
from octavo.types import Request

log = get_logger(__name__)

IN_FLIGHT = 50
"""Milliseconds that a message of a process that has ended may still need between zmq's threads."""
DRAIN = 64
"""Messages handled in one turn of the event loop."""


class ProcClient:
    """`EngineClient` over a unix socket. Start with `ProcClient.start`."""

    def __init__(self, spawned: Spawned) -> None:
        """The client ends the process when it is closed. Raises EngineDead where `spawned` was closed before."""
        self._spawned, self._process = spawned, spawned.process
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)  # what is open bounds what is queued: one message a step, and the intake's limit
        self._socket.linger = 0
        try:
            self._socket.bind(spawned.address)
            self._pidfd = os.pidfd_open(self._process.pid)
        except (zmq.ZMQError, OSError) as error:
            self._context.destroy(linger=0)
            spawned.close()
            raise EngineDead(f"the engine was closed before it had started: {error}") from error
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._pidfd, zmq.POLLIN)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_words: str | None = None
        self._closed = False
        self.stats: EngineStats

    # -- start --------------------------------------------------------------------------------------------------------
    @classmethod
    def start(
        cls,
        args: EngineArgs,
        *,
        spawned: Spawned | None = None,
        on_progress: Callable[[str, float], None] | None = None,
        on_front: Callable[[Front], None] | None = None,
    ) -> ProcClient:
        """Start the process, unless it is `spawned` already, and wait until the model is loaded.

        `on_front` is called as soon as the model's files are open, while weights load over there. Raises what the start
        raised on either side (ConfigError, DoesNotFit, ModelError, FetchError), or EngineDead where the engine died
        without a word. `spawned.close()` in another thread ends the start with EngineDead, wherever it is.
        """
        client = cls(spawned or Spawned(args.executor, args.cpus))
        try:
            client._shake_hands(args, on_progress, on_front)
        except BaseException:
            client._kill()
            raise
        return client

    def _shake_hands(
        self,
        args: EngineArgs,
        on_progress: Callable[[str, float], None] | None,
        on_front: Callable[[Front], None] | None,
    ) -> None:
        found = find_for(self._spawned, args, log_level=_level())
        while True:
            match self._receive(None):
                case Hello():
                    self._send(Start(args=found, log_level=_level()))
                    # A model that cannot be read fails here and there, with the same words.
                    self.front = read_front(found)
                    if on_front is not None:
                        on_front(self.front)
                case Progress(phase=phase, fraction=fraction):
                    if on_progress is not None:
                        on_progress(phase, fraction)
                case Failed() as failed:
                    self._process.wait(5)
                    raise failed.error()
                case Ready(facts=facts, config=config, stats=stats):
                    self.facts, self.config, self.stats = facts, config, stats
                    return
                case _:
                    raise EngineDead("the engine answered out of turn while starting")

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    # -- the port -----------------------------------------------------------------------------------------------------
    def add(self, requests: Sequence[Request]) -> None:
        self._send(Add(list(requests)))

    def abort(self, seq_ids: Sequence[int]) -> None:
        self._send(Abort(list(seq_ids)))

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    def poll(self, timeout: float | None = None) -> Outputs | None:
        return self._outputs(self._receive(timeout))

    def check(self) -> None:
        """Raises EngineDead if the process has ended."""
        if self._closed:
            raise EngineDead("the engine was closed")
        if self._process.poll() is not None:
            raise self._death()

    def close(self, timeout: float = 5.0) -> None:
        if self._closed:
            return
        try:
            self._send(Stop())
            self._process.wait(timeout)
        except EngineDead:
            pass  # just now, or long ago
        except subprocess.TimeoutExpired:
            log.warning("the engine did not stop within %g s and is killed", timeout)
        finally:
            self._kill()

    # -- on an event loop ---------------------------------------------------------------------------------------------
    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_outputs: Callable[[Outputs], None],
        on_death: Callable[[EngineDead], None],
    ) -> None:
        """Call `on_outputs` for every message and `on_death` once, from `loop`. `poll` may not be used afterwards."""
        self._loop, self._on_outputs, self._on_death = loop, on_outputs, on_death
        loop.add_reader(self._socket.fileno(), self._drain)
        loop.add_reader(self._pidfd, self._die)
        loop.call_soon(self._drain)

    def detach(self) -> None:
        """Stop calling. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_reader(self._pidfd)
            self._loop = None

    def _drain(self) -> None:
        # The socket's descriptor signals edges, not levels: read until nothing is left, and look again after a send.
        for _ in range(DRAIN):
            if self._loop is None:
                return
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            outputs = self._outputs(decode_up(data))
            if outputs is not None:
                self._on_outputs(outputs)
        if self._loop is not None:
            self._loop.call_soon(self._drain)

    def _die(self) -> None:
        self._drain()  # its last words, if any
        self.detach()
        self._on_death(self._death())

    # -- below --------------------------------------------------------------------------------------------------------
    def _send(self, message: Down) -> None:
        self.check()
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise self._unreachable(error) from error
        if self._loop is not None:
            self._loop.call_soon(self._drain)

    def _receive(self, timeout: float | None) -> Up | None:
        """The next message; None after `timeout` seconds. Raises EngineDead."""
        ready = dict(self._poller.poll(None if timeout is None else max(0, int(timeout * 1000))))
        if self._socket in ready:
            return decode_up(self._socket.recv())
        if self._pidfd in ready:
            if self._socket.poll(IN_FLIGHT):
                return decode_up(self._socket.recv())
            raise self._death()
        return None

    def _outputs(self, message: Up | None) -> Outputs | None:
        match message:
            case None:
                return None
            case Outputs():
                self.stats = message.stats
                return message
            case Failed():
                self._last_words = message.message
                return None
        raise EngineDead(f"the engine answered out of turn: {type(message).__name__}")

    def _unreachable(self, error: zmq.ZMQError) -> EngineDead:
        """Its end of the socket is gone: it is about to end, and may have said why."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return EngineDead(f"the engine cannot be reached: {error}")
        return self._death()

    def _death(self) -> EngineDead:
        code = self._process.poll()
        if code is None:  # the pidfd fires a moment before the exit status can be collected
            code = self._process.wait()
        if self._last_words is None:
            self._last_words = self._hear_last_words()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = f": {self._last_words}" if self._last_words else ""
        return EngineDead(f"the engine has died ({how}){words}")

    def _hear_last_words(self) -> str:
        """What is still in flight when the process has ended, answers and why it did; "" if it did not say."""
        if self._loop is not None:
            self._drain()
        while not self._last_words and self._socket.poll(IN_FLIGHT):
            self._outputs(decode_up(self._socket.recv()))
        return self._last_words or ""

    def _kill(self) -> None:
        self._closed = True
        self.detach()
        if self._process.poll() is None:
            self._process.terminate()
            deadline = time.monotonic() + 1.0
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
        self._spawned.close()
        os.close(self._pidfd)
        self._context.destroy(linger=0)


def _level() -> Literal["debug", "info", "warning", "error"]:
    """Our own level, for the engine's lines."""
    level = get_logger("octavo").getEffectiveLevel()
    if level <= logging.DEBUG:
        return "debug"
    if level <= logging.INFO:
        return "info"
    return "warning" if level <= logging.WARNING else "error"
