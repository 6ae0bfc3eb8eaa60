"""`octavo chat --url` against a small server on loopback."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.cli.session import RemoteTalker, Usage
from octavo.errors import OctavoError

EVENTS: list[Any] = [
    {"choices": [{"delta": {"role": "assistant"}}]},
    {"choices": [{"delta": {"content": "Grüß"}}]},
    {"choices": [{"delta": {"content": " Gott"}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    },
]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer k":
            return self._json(401, {"error": {"message": "no key"}})
        return self._json(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["messages"][-1]["content"] == "fail":
            return self._json(400, {"error": {"message": "temperature: got 9"}})
        assert body["stream"]
        assert body["model"] == "tiny"
        self.send_response(200)
        self.end_headers()
        for event in EVENTS:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if body["messages"][-1]["content"] == "break":
            self.wfile.write(b'data: {"error": {"message": "engine died"}}\n\n')
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _json(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_streams_text_then_usage(url: str) -> None:
    talker = RemoteTalker(url, api_key="k")
    assert talker.name == "tiny"
    pieces = list(talker.stream([{"role": "user", "content": "hi"}], {"temperature": 0}))
    assert pieces == ["Grüß", " Gott", Usage(9, 4, 2, "stop")]


def test_errors_carry_the_servers_words(url: str) -> None:
    with pytest.raises(OctavoError, match="401: no key"):
        RemoteTalker(url)
    talker = RemoteTalker(url, api_key="k")
    with pytest.raises(OctavoError, match="400: temperature: got 9"):
        list(talker.stream([{"role": "user", "content": "fail"}], {}))
    with pytest.raises(OctavoError, match="engine died"):
        list(talker.stream([{"role": "user", "content": "break"}], {}))
