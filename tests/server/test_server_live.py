"""A real server process on loopback: sockets, signals, the official client."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.live import ROOT, Live, free_port, live, post


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


STREAM = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}


def test_ready_line_and_health_and_clean_end() -> None:
    with live() as server:
        assert f"http://127.0.0.1:{server.port}" in server.ready and "fake" in server.ready
        assert server.get("/health")[0] == 200
        assert server.stop() == 0
        assert "Traceback" not in server.stderr()


def test_loading_is_told_and_a_busy_port_at_once() -> None:
    port = free_port()
    with live(config={"port": port}, load_seconds=1.5, wait_ready=False) as server:
        status, body = server.get("/health")
        assert status == 503 and b"loading" in body
        with live(config={"port": port}, load_seconds=60, wait_ready=False) as second:
            assert second.process.wait(5) == 3
            assert "--port" in second.stderr()
        deadline = time.monotonic() + 10
        while server.get("/health")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    with live(fails="weights: 9 GiB, allowed: 1 GiB", wait_ready=False) as server:
        assert server.process.wait(10) == 3
        assert server.stderr().strip() == "DoesNotFit: weights: 9 GiB, allowed: 1 GiB"


def test_sigterm_while_loading_ends_quickly() -> None:
    with live(config={"port": free_port()}, load_seconds=60, wait_ready=False) as server:
        assert server.get("/health")[0] == 503  # it listens before it can answer, and before it takes signals
        assert server.stop(timeout=5) == 0


def test_sigterm_lets_open_requests_finish() -> None:
    with live(fake={"delay": 0.002}) as server:
        with server.connect() as sock:
            sock.sendall(post("/v1/completions", STREAM, close=False))
            got = sock.recv(4096)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(OSError):
                server.connect()
            while part := sock.recv(65536):
                got += part
        assert b"data: [DONE]" in got and b'"length"' in got
        assert server.process.wait(5) == 0


def test_after_the_grace_time_requests_end_with_a_reason() -> None:
    with live(config={"grace_seconds": 0.3}, fake={"delay": 0.05}) as server:
        results: list[bytes] = []
        whole = {**STREAM, "stream": False}
        threads = [
            threading.Thread(target=lambda d=d: results.append(server.exchange(post("/v1/completions", d))))
            for d in (STREAM, whole)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert server.stop(timeout=5) == 0
        for thread in threads:
            thread.join(5)
        assert len(results) == 2 and all(b"shutting_down" in r for r in results)


def test_second_signal_quits() -> None:
    with live(config={"grace_seconds": 60}, fake={"delay": 0.05}) as server:
        with server.connect() as sock:
            sock.sendall(post("/v1/completions", STREAM))
            sock.recv(4096)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert server.process.poll() is None
            assert server.stop(signal.SIGINT, timeout=5) == 0


def test_port_is_free_after_sigkill() -> None:
    with live() as server:
        server.process.kill()
        server.process.wait()
        with live(config={"port": server.port}) as again:
            assert again.get("/health")[0] == 200


def test_disconnects_on_real_sockets_abort() -> None:
    with live(fake={"delay": 0.02, "first_delay": 0.02}) as server:
        for index in range(40):
            data = {**STREAM, "stream": bool(index % 2), "n": 1 + index % 3}
            with server.connect() as sock:
                sock.sendall(post("/v1/completions", data, close=False))
                time.sleep(0.001 * (index % 30))
        deadline = time.monotonic() + 2
        while b'octavo:num_requests_running{model_name="fake"} 0.0' not in server.get("/metrics")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_requests_on_one_connection(server: Live) -> None:
    with server.connect() as sock:
        for _ in range(3):
            sock.sendall(post("/v1/completions", {"prompt": "x"}, close=False))
            got = b""
            while b'"usage"' not in got:
                got += sock.recv(65536)
            assert got.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("junk", [b"\x16\x03\x01junk\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http(server: Live, junk: bytes) -> None:
    got = server.exchange(junk)
    assert got.startswith(b"HTTP/1.1 400") and b'"invalid_request_error"' in got
    assert server.get("/health")[0] == 200


def test_head_limits() -> None:
    with live(config={"max_header_bytes": 4096, "body_timeout": 0.5}) as server:
        got = server.exchange(b"GET /health HTTP/1.1\r\nX: " + b"a" * 5000)
        assert got.startswith(b"HTTP/1.1 431")
        got = server.exchange(b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)))
        assert got.startswith(b"HTTP/1.1 431") or got == b""
        assert server.exchange(b"GET /health HTTP/1.1\r\nHost: ").startswith(b"HTTP/1.1 408")
        assert server.exchange(b"").startswith(b"HTTP/1.1 408")
        cut = post("/v1/completions", {"prompt": "x"}, close=False)[:-3]
        assert server.exchange(cut).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("size", [5_000, 60_000, 300_000, 2_000_000])
def test_a_long_body_is_not_a_long_head(size: int) -> None:
    """The data that ended a body counted as the next request's head: the connection closed without an answer."""
    with live(config={"max_header_bytes": 4096}) as server:
        body = {"prompt": "x" * size, "max_tokens": 1}
        twice = post("/v1/completions", body, close=False) + post("/v1/completions", body)
        assert server.exchange(twice).count(b"HTTP/1.1 ") == 2


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with live(config={"uds": str(path)}) as server:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        server.process.kill()
        server.process.wait()
        with live(config={"uds": str(path)}) as again:
            assert again.stop() == 0
    assert not path.exists()


def test_key_from_the_environment() -> None:
    with live(env={"OCTAVO_API_KEY": "secret-key"}) as server:
        assert server.get("/v1/models")[0] == 401 and server.get("/health")[0] == 200
        got = server.exchange(
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret-key\r\nConnection: close\r\n\r\n"
        )
        assert got.startswith(b"HTTP/1.1 200")
        server.stop()
        assert "secret-key" not in server.stderr()


def test_an_open_address_needs_a_key_which_may_come_from_the_environment() -> None:
    with live(config={"host": "0.0.0.0"}, wait_ready=False) as server:
        assert server.process.wait(10) == 3 and "--insecure" in server.stderr()
    with live(config={"host": "0.0.0.0"}, env={"OCTAVO_API_KEY": "k"}) as server:
        assert server.get("/version")[0] == 401


def test_only_loopback_listens(server: Live) -> None:
    pid = server.process.pid
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes]
    assert listening == [f"0100007F:{server.port:04X}"]


def test_a_dead_engine_shows_and_is_started_again() -> None:
    with live(dies_after=0.5, fake={"delay": 0.01}) as server:
        got = server.exchange(post("/v1/completions", {**STREAM, "max_tokens": 500}))
        assert b"engine_dead" in got
        status, body = server.get("/health")
        assert status == 503 and b"engine_dead" in body
        deadline = time.monotonic() + 10
        while server.get("/health")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert server.stop() == 0


def test_a_restart_that_fails_is_tried_again() -> None:
    with live(dies_after=0.2, dead_starts=[2, 3]) as server:
        seen: set[bytes] = set()
        deadline = time.monotonic() + 20
        while (answer := server.get("/health"))[0] != 200 or not seen:
            seen |= {answer[1]} if answer[0] == 503 else set()
            assert time.monotonic() < deadline and server.process.poll() is None
            time.sleep(0.1)
        assert all(b"engine_dead" in body for body in seen)
        assert server.get("/v1/models")[0] == 200 and server.stop() == 0
        assert server.stderr().count("could not be started again: start") == 2


def test_restarts_that_keep_failing_end_the_server() -> None:
    with live(dies_after=0.1, fails="weights: 9 GiB, allowed: 1 GiB", fails_after=1) as server:
        assert server.process.wait(20) == 3
        said = server.stderr().splitlines()
        assert said[-1].startswith("EngineDead: the engine died or could not be started 4 times within 5 minutes")
        assert said[-1].endswith("weights: 9 GiB, allowed: 1 GiB")


def test_official_client() -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    with live(config={"api_key": ["k"]}) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
        assert [m.id for m in client.models.list()] == ["fake"]
        messages = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model="fake", messages=messages, logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        assert text.endswith("forty-two. ") and whole.usage.prompt_tokens_details.cached_tokens == 16
        again = [*messages, whole.choices[0].message, {"role": "user", "content": "and?"}]
        assert client.chat.completions.create(model="fake", messages=again).usage.prompt_tokens > 100
        assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
        stream = client.chat.completions.create(
            model="fake", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert chunks[-1].usage == whole.usage and chunks[0].choices[0].delta.role == "assistant"
        legacy = client.completions.create(model="fake", prompt="x", max_tokens=5, stop=["\n"], extra_body={"top_k": 3})
        assert legacy.usage.completion_tokens == 5
        with client.chat.completions.stream(model="fake", messages=messages) as events:
            assert events.get_final_completion().choices[0].message.content == text
        with pytest.raises(openai.NotFoundError, match="'fake'"):
            client.chat.completions.create(model="gpt-4", messages=messages)
        with pytest.raises(openai.BadRequestError, match="allowed: up to 511"):
            client.completions.create(model="fake", prompt="x" * 600)
        with pytest.raises(openai.BadRequestError, match="not supported") as refused:
            client.chat.completions.create(model="fake", messages=messages, response_format={"type": "json_object"})
        assert refused.value.param == "response_format"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()


def test_official_client_sees_errors_inside_a_stream() -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    with live(fake={"fail_at": 3}) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        stream = client.completions.create(model="fake", prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="could not compute"):
            list(stream)


def test_example_with_the_official_client(server: Live) -> None:
    pytest.importorskip("openai", reason="the official client is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "openai_client.py"), "--url", server.url + "/v1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "forty-two" in done.stdout and "tokens" in done.stdout


def test_stream_bodies_are_valid_http_chunks(server: Live) -> None:
    raw = server.exchange(post("/v1/completions", {"prompt": "x", "stream": True}))
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    data = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    events = [line[6:] for line in data.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]" and len([json.loads(e) for e in events[:-1]]) == 16
