"""Start a server as a user would, wait for its first answer, stop it. Works for any OpenAI-compatible command."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from octavo.bench.process import free_port as free_port
from octavo.bench.process import running


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


@contextmanager
def serve(
    command: Sequence[str],
    *,
    port: int,
    model: str,
    prompt: Sequence[int] = (1001, 1002, 1003),
    env: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Run `command` until a one-token completion of `model` is answered; stop it at the end. Raises OctavoError.

    The prompt is ids, not text: the same for every engine.
    """
    with running(command, port=port, model=model, prompt=list(prompt), env=env) as server:
        yield Server(server.url, server.pid, model, server.start_seconds, server.log)
