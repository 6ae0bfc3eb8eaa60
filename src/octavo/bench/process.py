"""Start a server as a user would, wait for its first answer, stop it. Works for any OpenAI-compatible command."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from octavo.errors import EngineDead, OctavoError

READY_TIMEOUT = 180.0
STOP_TIMEOUT = 20.0


class Running(Struct, frozen=True):
    """A server that answers. `start_seconds`: from the start of the process to the first answered request."""

    url: str
    pid: int
    start_seconds: float
    log: Path


def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    *,
    port: int,
    model: str,
    prompt: str | list[int] = "Hi",
    env: dict[str, str] | None = None,
    ready_timeout: float = READY_TIMEOUT,
) -> Iterator[Running]:
    """Run `command` until a one-token completion of `model` on `port` is answered; stop it at the end.

    Bytecode is kept whatever our own environment says, as an installed package has it. Raises EngineDead where the
    server ends or stays silent for `ready_timeout` seconds, with the end of its log, and OctavoError where it refuses.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        log = Path(folder) / "log"
        began = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={k: v for k, v in (os.environ if env is None else env).items() if k != "PYTHONDONTWRITEBYTECODE"},
            )
        try:
            body: dict[str, object] = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
            _wait_for_answer(process, port, body, log, ready_timeout)
            yield Running(f"http://127.0.0.1:{port}", process.pid, time.perf_counter() - began, log)
        finally:
            _stop(process)


def _wait_for_answer(
    process: subprocess.Popen[bytes], port: int, body: dict[str, object], log: Path, timeout: float
) -> None:
    data, headers = msgspec.json.encode(body), {"Content-Type": "application/json"}
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if process.poll() is not None:
            raise EngineDead(f"the server ended with code {process.returncode}: {_tail(log)}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", data, headers)
            response = connection.getresponse()
            raw = response.read()
            if response.status == 200:
                return
            if response.status != 503:
                raise OctavoError(f"the server answered HTTP {response.status}: {raw[:300].decode(errors='replace')}")
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.01)
    raise EngineDead(f"no answer in {timeout:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace")[-600:].split())


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to what is left of its session."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own, and is not reaped yet
        process.wait(STOP_TIMEOUT)
