"""Start a server as a user would, wait for its first answer, stop it. Works for any OpenAI-compatible command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import tree

READY_TIMEOUT = 180.0


@dataclass(slots=True)
class Server:
    """A running server. `start_seconds`: from the start of the process to the first answered request."""

    url: str
    pid: int
    model: str
    start_seconds: float
    log: Path
    samples: list[dict[str, float]] = field(default_factory=list)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return str(response.read().decode())

    def metrics(self) -> dict[str, float]:
        """Metric name (prefix and labels cut off) -> value; of several labels the sum."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0].rpartition(":")[2]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    @contextmanager
    def sampling(self, every: float = 0.25) -> Iterator[list[dict[str, float]]]:
        """Read /metrics again and again during the block."""
        stop, found = threading.Event(), self.samples

        def watch() -> None:
            while not stop.wait(every):
                found.append(self.metrics())

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _favoured() -> None:
    """Own session; raised priority where that is allowed, since other work on the machine is not the figure."""
    os.setsid()
    try:
        os.nice(-10)
    except OSError:
        pass


@contextmanager
def serve(command: Sequence[str], *, port: int, model: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """Run `command` until a one-token completion of `model` is answered; stop it at the end. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        began = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=_favoured, env=env
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for_answer(process, url, model, log)
            yield Server(url, process.pid, model, time.perf_counter() - began, log)
        finally:
            _stop(process)


def _wait_for_answer(process: subprocess.Popen[bytes], url: str, model: str, log: Path) -> None:
    body = json.dumps({"model": model, "prompt": [1001, 1002, 1003], "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    end = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < end:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-600:]
            raise RuntimeError(f"the server ended with code {process.returncode}: {tail}")
        try:
            urllib.request.urlopen(request, timeout=60).read()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise RuntimeError(f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}") from None
        except OSError:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"no answer in {READY_TIMEOUT:.0f} s: {log.read_text(errors='replace')[-600:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to what is left of the tree."""
    if process.poll() is not None:
        return
    family = tree(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait(20)
