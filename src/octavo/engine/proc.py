"""The engine process: `python -m octavo.engine.proc ADDRESS EXECUTOR [CPUS]`, started by `spawn.Spawned` alone.

import what the executor will need
wait until there is a message or work
take every message that has come
run one step, send what it gave, and only then plan the next
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq

from octavo.engine.build import build_engine
from octavo.engine.messages import (
    Abort,
    Add,
    Failed,
    Hello,
    Progress,
    Ready,
    ResetPrefixCache,
    Start,
    Stop,
    Up,
    decode_down,
    encode,
    unread_add,
)
from octavo.engine.stepper import Stepper
from octavo.errors import OctavoError
from octavo.executor import preload
from octavo.kernels.affinity import keep_to
from octavo.obs import log as obs_log
from octavo.sched.refused import Refused

log = obs_log.get_logger(__name__)

COLLECT_EVERY = 2000
"""Steps between collections of young garbage while busy; the rest is collected when idle."""
QUIET = 0.25
"""Longest time, in seconds, that a busy engine without outputs (a long prompt) keeps its snapshot to itself."""
PROGRESS_STEP = 0.02
SETTLE_MS = 20
"""So long without a message and the engine counts as idle."""
RETRY_MS = 5
"""Between attempts to connect: we may be there before the front half listens."""


class EngineProcess:
    """The loop between a socket and a core."""

    def __init__(self, socket: zmq.Socket[bytes], wake: int, stepper: Stepper) -> None:
        """`wake` is a descriptor that becomes readable when a signal has come."""
        self._socket, self._stepper = socket, stepper
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(wake, zmq.POLLIN)
        self.stopping = False

    def run(self) -> None:
        """Until told to stop."""
        stepper, steps, spoke = self._stepper, 0, 0.0
        while True:
            if not stepper.has_work:
                gc.collect()
                self._rest()
            elif stepper.stalled:
                self._poller.poll(1)
            self._intake()
            if self.stopping:
                return
            message = stepper.step()
            if message is None:
                # An abort may have emptied the engine: those who watch should see it.
                self._send(stepper.idle_message())
                continue
            now = time.monotonic()
            if message.outputs or message.refused or now - spoke > QUIET or not stepper.has_work:
                self._send(message)
                spoke = now
            else:
                stepper.keep(message)
            steps += 1
            if steps % COLLECT_EVERY == 0:
                gc.collect(0)

    def _rest(self) -> None:
        """Wait for a message. What the next burst would wait for is made ready meanwhile, then it costs nothing."""
        if self._poller.poll(SETTLE_MS):
            return
        while self._stepper.core.prepare():
            if self._poller.poll(0):
                return
        self._poller.poll()

    def _intake(self) -> None:
        """Take every message that has come, in order."""
        while not self.stopping:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode_down(data)
            except msgspec.DecodeError as error:
                self._refuse(data, error)
                continue
            match message:
                case Add(requests=requests):
                    self._stepper.add(requests)
                case Abort(seq_ids=seq_ids):
                    self._stepper.abort(seq_ids)
                case ResetPrefixCache():
                    self._stepper.core.scheduler.reset_prefix_cache()
                case Stop():
                    self.stopping = True
                case Start():
                    raise OctavoError("started twice")

    def _refuse(self, data: bytes, error: msgspec.DecodeError) -> None:
        """Who sent a message that cannot be read must not end the others: its requests are refused, where it names any,
        and the rest is dropped."""
        seq_ids = unread_add(data)
        for seq_id in seq_ids:
            self._stepper.refuse(Refused(seq_id, "invalid", f"the engine cannot read this request: {error}"))
        what = f"requests {', '.join(map(str, seq_ids))} are refused" if seq_ids else "a message is dropped"
        log.error("%s: %s", what, error)

    def _send(self, message: Up) -> None:
        self._socket.send(encode(message))


def _die_with_parent(directory: Path) -> None:
    """Our standard input is a pipe whose other end only the parent holds: it ends when the parent does."""

    def watch() -> None:
        while os.read(0, 64):
            pass
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, name="octavo-parent", daemon=True).start()


class _Progress:
    """Sends progress, but not every percent of a percent."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._phase, self._fraction = "", -1.0

    def __call__(self, phase: str, fraction: float) -> None:
        if phase != self._phase or fraction >= self._fraction + PROGRESS_STEP or fraction >= 1.0:
            self._phase, self._fraction = phase, fraction
            self._socket.send(encode(Progress(phase, fraction)))


def _serve(socket: zmq.Socket[bytes], executor: str) -> None:
    """Handshake, load, loop."""
    socket.send(encode(Hello()))
    preload(executor)
    start = decode_down(socket.recv())
    assert isinstance(start, Start)
    obs_log.configure(start.log_level, part="engine")
    engine = build_engine(start.args, on_progress=_Progress(socket))
    try:
        read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        process = EngineProcess(socket, read, Stepper(engine.core))

        def stop(number: int, frame: object) -> None:
            process.stopping = True

        signal.signal(signal.SIGTERM, stop)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()
        gc.disable()
        socket.send(encode(Ready(engine.facts, engine.config, engine.core.stats())))
        process.run()
    finally:
        engine.core.close()


def main(address: str, executor: str, cpus: str | None = None) -> int:
    """Exit code: 0 after Stop or SIGTERM, 1 after an error, which was sent before."""
    keep_to(cpus)  # before there are threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it may want to drain
    _die_with_parent(Path(address.removeprefix("ipc://")).parent)
    context = zmq.Context(io_threads=1)
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.reconnect_ivl = RETRY_MS
    socket.connect(address)
    code = 0
    try:
        _serve(socket, executor)
    except Exception as error:
        expected = isinstance(error, OctavoError)
        log.log(logging.DEBUG if expected else logging.ERROR, "the engine ends: %s", error, exc_info=True)
        socket.send(encode(Failed.of(error)))
        code = 1
    context.destroy(linger=1000)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
