"""Fetches from a hub of our own that breaks off: what is there of a file is not asked for again."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests import homes
from tests.child import child_env

CHUNK = 10 << 20
"""Bytes that the client writes at once."""
WEIGHTS = os.urandom(1 << 20) * 25
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
XET = "ab" * 32
"""A client that asked for the file over Xet would find no such server."""


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves repositories as Hugging Face does."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]]
    sends: ClassVar[list[int]]
    """Of the next answers with weights: how many bytes come before the connection hangs (or, below 0, is closed)."""
    ranges: ClassVar[list[str | None]]
    """What was asked for of weights."""
    told: ClassVar[str]
    """What it says the weights' sha256 is."""

    def do_HEAD(self) -> None:
        self._serve(b"")

    def do_GET(self) -> None:
        self._serve(None)

    def _serve(self, body: bytes | None) -> None:
        path = self.path.partition("?")[0]
        if "/resolve/" not in path:
            listed = "/tree/" in path
            self._answer(200, json.dumps(self._tree() if listed else self._about()).encode(), {}, body)
            return
        name = path.partition("/resolve/")[2].partition("/")[2]
        data, headers = self.files[name], {"X-Repo-Commit": homes.COMMIT}
        if not name.endswith((".gguf", ".safetensors")):
            self._answer(200, data, {**headers, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, body)
            return
        headers |= {"ETag": f'"{self.told}"', "X-Xet-Hash": XET, "X-Xet-Refresh-Route": "/none"}
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if body is None:
            self.ranges.append(wanted)
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._answer(206 if wanted else 200, data[start:], headers, body, cut=body is None)

    def _about(self) -> object:
        return {"id": "org/m", "sha": homes.COMMIT, "siblings": [{"rfilename": name} for name in self.files]}

    def _tree(self) -> object:
        rows = []
        for name, data in self.files.items():
            row: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            if name.endswith((".gguf", ".safetensors")):
                row |= {"lfs": {"oid": self.told, "size": len(data), "pointerSize": 1}, "xetHash": XET}
            else:
                row["oid"] = hashlib.sha1(data).hexdigest()
            rows.append(row)
        return rows

    def _answer(
        self, status: int, data: bytes, headers: dict[str, str], body: bytes | None, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        send = self.sends.pop(0) if cut and self.sends else len(data)
        self.wfile.write(data[: abs(send)] if body is None else body)
        if abs(send) < len(data):
            self.wfile.flush()
            if send > 0:
                time.sleep(60)  # whoever waits is killed
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a process that knows this hub alone."""
    Hub.files = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"never asked for"}
    Hub.sends, Hub.ranges, Hub.told = [], [], SHA256
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = child_env(HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{server.server_address[1]}")
        yield {key: value for key, value in env.items() if key not in homes.VARIABLES and "PROXY" not in key.upper()}
        server.shutdown()


def octavo(env: dict[str, str], *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "octavo", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(env: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return octavo(env, "pull", "--quiet", *words)


def pull(env: dict[str, str], *words: str) -> Path:
    process = start(env, *words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return Path(out.strip())


def cache(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".cache/huggingface/hub/models--org--m"


def part(env: dict[str, str]) -> Path:
    return cache(env) / "blobs" / f"{SHA256}.incomplete"


def wait_for_a_chunk(process: subprocess.Popen[str], env: dict[str, str]) -> None:
    for _ in range(1200):
        if process.poll() is not None or (part(env).exists() and part(env).stat().st_size >= CHUNK):
            break
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_a_killed_fetch_goes_on_where_it_stopped(env: dict[str, str], kind: str) -> None:
    name = "model.safetensors" if kind == "directory" else "m-Q4_0.gguf"
    Hub.files = {**{key: data for key, data in Hub.files.items() if data is not WEIGHTS}, name: WEIGHTS}
    Hub.sends = [CHUNK + CHUNK // 2]
    process = start(env, "org/m")
    wait_for_a_chunk(process, env)
    process.kill()
    said = process.communicate()[1]
    assert part(env).stat().st_size == CHUNK, said
    path = pull(env, "org/m")
    assert Hub.ranges == [None, f"bytes={CHUNK}-"], "what was there was not asked for again"
    file = path / name if kind == "directory" else path
    assert file.read_bytes() == WEIGHTS and file.resolve().parent == cache(env) / "blobs"
    assert not list(cache(env).rglob("*.incomplete")) and not list(cache(env).rglob("README.md"))
    assert pull(env, "org/m") == pull(env, "org/m", "--update") == path
    assert pull(env, "org/m", "--offline", "--revision", "main") == path
    assert len(Hub.ranges) == 2, "nothing more"


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (["serve", "org/m", "--port", "0"], signal.SIGTERM, 0),
        (["run", "org/m", "hello"], signal.SIGINT, 130),
        (["serve", "org/m", "--port", "0"], signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["serve", "run", "killed"],
)
def test_a_start_that_ends_while_it_fetches(
    env: dict[str, str], words: list[str], number: signal.Signals, code: int
) -> None:
    """Its other processes end with it: they hold the other end of its standard error. The next fetch goes on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without
    Hub.sends = [CHUNK + CHUNK // 2]
    process = octavo(env, *words)
    signal.signal(signal.SIGINT, before)
    wait_for_a_chunk(process, env)
    process.send_signal(number)
    began = time.monotonic()
    said = process.communicate(timeout=30)[1]
    assert time.monotonic() - began < 3.0 and process.returncode == code and "Traceback" not in said, said
    assert part(env).stat().st_size == CHUNK
    assert (pull(env, "org/m") / "model.safetensors").read_bytes() == WEIGHTS
    assert Hub.ranges == [None, f"bytes={CHUNK}-"]


def test_what_a_start_cannot_fetch_is_told(env: dict[str, str]) -> None:
    Hub.files = {}
    for words in (["run", "org/m", "x"], ["run", "org/m", "x", "--offline"]):
        process = octavo(env, *words)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 1 and said.startswith("octavo: org/m: ") and said.count("\n") == 1, said


def test_a_connection_that_breaks_is_gone_on_with_at_once(env: dict[str, str]) -> None:
    Hub.sends = [-(CHUNK + 5), -(CHUNK + 7)]
    assert (pull(env, "org/m") / "model.safetensors").read_bytes() == WEIGHTS
    assert Hub.ranges == [None, f"bytes={CHUNK}-", f"bytes={2 * CHUNK}-"]


@pytest.mark.parametrize(
    ("there", "asked"),
    [(b"x" * 1000, ["bytes=1000-", None]), (WEIGHTS + b"x", [None]), (WEIGHTS, []), (b"", [None])],
    ids=["damaged", "longer", "all", "nothing"],
)
def test_parts_of_every_kind(env: dict[str, str], there: bytes, asked: list[str | None]) -> None:
    homes.write(part(env), there)
    assert (pull(env, "org/m") / "model.safetensors").read_bytes() == WEIGHTS
    assert Hub.ranges == asked


def test_a_wrong_hash_leaves_nothing(env: dict[str, str]) -> None:
    Hub.told = "0" * 64
    process = start(env, "org/m")
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and f"model.safetensors: what came has sha256 {SHA256}, allowed: {Hub.told}" in said
    assert {path.stat().st_size for path in (cache(env) / "blobs").iterdir()} == {2}, "config.json alone"


def test_what_another_repository_has_is_not_fetched(env: dict[str, str]) -> None:
    shared = pytest.importorskip(
        "huggingface_hub.utils._shared_blobs", reason="this huggingface-hub has no blobs that repositories share"
    )
    hub = cache(env).parent
    theirs = homes.write(hub / "models--org--other/blobs" / SHA256, WEIGHTS)
    told = {"xet_hash": XET, "cache_dir": str(hub), "expected_size": len(WEIGHTS)}
    assert shared.publish_blob_to_shared_store(blob_path=str(theirs), **told)
    assert (pull(env, "org/m") / "model.safetensors").samefile(theirs) and Hub.ranges == []
