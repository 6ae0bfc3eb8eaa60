"""uvicorn as we use it: httptools, with bounds on a request's head, which it lacks: bytes and time (S09)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn.config
import uvicorn.server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config.server import ServerConfig
from octavo.server.bind import BACKLOG
from octavo.server.errors import ErrorBody, ErrorInfo

if TYPE_CHECKING:
    from octavo.server.app import ASGIApp

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """`bounded(...)` makes the class with its limits."""

    max_head = 64 << 10
    head_seconds = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._ended = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))  # a server's connections are all Transports
        self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._ended = False
        super().data_received(data)
        # Data that ends a message is its body, nearly all of it: what follows is counted from the next data on.
        if not self._in_head or self._ended or self.parser is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head:
            self._reject(431, f"request head: got more than {self.max_head} bytes, allowed: at most {self.max_head}")
        elif self._head_timer is None and self._head_bytes:
            self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # What follows on this connection is the next head.
        self._in_head = True
        self._ended = True
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        self._reject(400, "not a valid HTTP request")

    def _too_slow(self) -> None:
        self._head_timer = None
        if self._in_head and (self.cycle is None or self.cycle.response_complete):
            self._reject(408, f"request head: not complete after {self.head_seconds:g} seconds")

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject(self, status: int, message: str) -> None:
        """Answers without the application and closes. Where a response is under way it is only cut off."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(ErrorBody(ErrorInfo(message, "invalid_request_error", None, None)))
            head = (
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head % (status, _REASONS[status], len(body)) + body)
        self.transport.close()


def bounded(max_head: int, head_seconds: float) -> type[BoundedProtocol]:
    """The protocol class with these limits (uvicorn makes the instances)."""
    return type("Protocol", (BoundedProtocol,), {"max_head": max_head, "head_seconds": head_seconds})


class QuietServer(uvicorn.server.Server):
    """uvicorn's server without its signal handlers: `run.Life` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(app: ASGIApp, config: ServerConfig) -> QuietServer:
    """A server for sockets that are already listening."""
    # uvicorn's own messages repeat what we say; its warnings stay.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings = uvicorn.config.Config(
        app,
        http=bounded(config.max_header_bytes, config.body_timeout),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=max(1, round(config.keep_alive_seconds)),
    )
    return QuietServer(settings)
