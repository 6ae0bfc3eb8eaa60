"""A real server on a fake AsyncLLM in its own process: `python -m tests.server.live '{"config": {...}}'`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.child import child_env

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    import msgspec

    from octavo.config.server import ServerConfig
    from octavo.errors import DoesNotFit, EngineDead, OctavoError
    from octavo.obs.log import configure
    from octavo.server.run import run, with_env_keys
    from tests.fakes import FakeAsyncLLM

    wishes = json.loads(sys.argv[1])
    config = msgspec.convert(wishes["config"], ServerConfig)
    configure(config.log_level)
    starts = 0

    async def start() -> FakeAsyncLLM:
        nonlocal starts
        starts += 1
        await asyncio.sleep(wishes.get("load_seconds", 0.0))
        if (message := wishes.get("fails")) and starts > wishes.get("fails_after", 0):
            raise DoesNotFit(message)
        if starts in wishes.get("dead_starts", ()):
            raise EngineDead(f"start {starts}: killed while loading")
        llm = FakeAsyncLLM(**wishes.get("fake", {}))
        if starts == 1 and (after := wishes.get("dies_after")):
            asyncio.get_running_loop().call_later(after, setattr, llm, "dead", True)
        return llm

    try:
        run(start, with_env_keys(config), on_ready=lambda line: print(line, flush=True))
    except OctavoError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)


class Live:
    def __init__(self, process: subprocess.Popen[str], port: int, ready: str) -> None:
        self.process, self.port, self.ready = process, port, ready
        self.url = f"http://127.0.0.1:{port}"

    def stop(self, number: int = signal.SIGTERM, *, timeout: float = 10) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def exchange(self, data: bytes) -> bytes:
        """Sends bytes and reads until the server closes."""
        with self.connect() as sock:
            sock.sendall(data)
            out = b""
            with contextlib.suppress(ConnectionResetError):  # it closed with our bytes unread
                while part := sock.recv(65536):
                    out += part
            return out

    def get(self, path: str) -> tuple[int, bytes]:
        raw = self.exchange(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = raw.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


def post(path: str, data: object, *, close: bool = True) -> bytes:
    body = json.dumps(data).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + (b"Connection: close\r\n" if close else b"") + b"\r\n" + body


@contextlib.contextmanager
def live(
    *, wait_ready: bool = True, env: dict[str, str] | None = None, config: dict[str, Any] | None = None, **wishes: Any
) -> Iterator[Live]:
    """Starts it; ends it, whatever happened."""
    wishes["config"] = {"port": 0, **(config or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.live", json.dumps(wishes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_env(tests=True, **(env or {})),
        cwd=ROOT,
    )
    try:
        ready, port = "", wishes["config"]["port"]
        if wait_ready:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready, process.communicate()[1]
            if "http://" in ready:
                port = int(ready.split("http://")[1].split()[0].rsplit(":", 1)[1])
        else:
            until = time.monotonic() + 10
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.02)
        yield Live(process, port, ready)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


if __name__ == "__main__":
    main()
