"""One HTTP request and its response over raw ASGI: reading a bounded body, writing JSON or a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec

from octavo.errors import InvalidRequest

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON_TYPE: Header = (b"content-type", b"application/json")
_STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class BodyTooLarge(InvalidRequest):
    status = 413


class BodyTimeout(InvalidRequest):
    status = 408


class WrongMediaType(InvalidRequest):
    status = 415


class Disconnected(Exception):
    """The client left before its body was complete."""


class Exchange:
    """What a handler gets. `send` is the server's own, so an event costs one call."""

    __slots__ = (
        "_receive",
        "cache_salt",
        "data",
        "headers",
        "path",
        "request_id",
        "scope",
        "send",
        "started",
        "status",
        "streaming",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, path: str, request_id: str) -> None:
        self.scope = scope
        self.headers: list[Header] = scope["headers"]
        self.send = send
        self.path = path
        self.request_id = request_id
        self.data = b""
        """The body of a POST."""
        self.cache_salt: str | None = None
        """What keeps the caller's key apart in the prefix cache."""
        self.started = False
        self.streaming = False
        self.status = 0
        self._receive = receive

    def header(self, name: bytes) -> bytes | None:
        """The first header of that lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    async def body(self, limit: int, timeout: float) -> bytes:
        """The whole JSON body. A page of another origin can send anything but application/json without asking first,
        so insisting on it keeps strangers' pages from using a server on this machine.

        Raises: WrongMediaType, BodyTooLarge, BodyTimeout, Disconnected.
        """
        media = (self.header(b"content-type") or b"").split(b";", 1)[0].strip().lower()
        if media != b"application/json":
            got = media.decode("latin-1")[:80] or "none"
            raise WrongMediaType(f"content-type: got {got!r}, allowed: 'application/json'", param="content-type")
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise BodyTooLarge(f"request body: got {int(declared)} bytes, allowed: at most {limit}")
        try:
            async with asyncio.timeout(timeout):
                return await self._read(limit)
        except TimeoutError:
            raise BodyTimeout(f"request body: not complete after {timeout:g} seconds") from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise Disconnected
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge(f"request body: got more than {limit} bytes, allowed: at most {limit}")
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has left (or the response is complete). Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, headers: list[Header]) -> None:
        self.started = True
        self.status = status
        length = (b"content-length", b"%d" % len(body))
        request_id = (b"x-request-id", self.request_id.encode())
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, length, request_id]})
        await self.send({"type": "http.response.body", "body": body})

    async def json(self, value: object, *, status: int = 200, headers: list[Header] | None = None) -> None:
        await self.reply(status, msgspec.json.encode(value), [JSON_TYPE, *(headers or [])])

    async def json_of(self, build: Callable[[], object], *, heavy: bool) -> None:
        """As `json` for a value yet to be made; a heavy one is made and encoded on a thread (R16)."""
        body = await asyncio.to_thread(_made, build) if heavy else _made(build)
        await self.reply(200, body, [JSON_TYPE])

    async def start_events(self) -> None:
        """Head of a stream of server-sent events. Called with the first sampled token in hand, so that whatever fails
        before it still gets its proper status."""
        self.started = self.streaming = True
        self.status = 200
        headers = [*_STREAM_HEADERS, (b"x-request-id", self.request_id.encode())]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def end_events(self, last: bytes = b"") -> None:
        self.streaming = False
        await self.send({"type": "http.response.body", "body": last})


def _made(build: Callable[[], object]) -> bytes:
    return msgspec.json.encode(build())
