"""Calls an ASGI application without sockets, and leaves in the middle when asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data of the server-sent events; [DONE] as the string."""
        out: list[Any] = []
        for part in self.body.decode().split("\n\n"):
            if part:
                assert part.startswith("data: "), part
                data = part.removeprefix("data: ")
                out.append(data if data == "[DONE]" else json.loads(data))
        return out


async def ask(
    app: Callable[..., Awaitable[None]],
    method: str,
    path: str,
    data: object = None,
    *,
    raw: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    leave_after: int | None = None,
    leave_at: float | None = None,
    slow: float = 0.0,
) -> Reply:
    """One request. `leave_after` k body chunks, or `leave_at` seconds, the client is gone. `slow`: seconds it takes for
    each message."""
    body = raw if raw is not None else (b"" if data is None else json.dumps(data).encode())
    given = {"host": "x"} | ({"content-type": "application/json"} if method == "POST" else {}) | dict(headers or {})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
    }
    reply = Reply()
    gone = asyncio.Event()
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        if gone.is_set():
            return
        if message["type"] == "http.response.start":
            assert not reply.status
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        assert reply.status and not reply.complete
        if slow:
            await asyncio.sleep(slow)
        if message.get("body"):
            reply.chunks.append(message["body"])
        if not message.get("more_body", False):
            reply.complete = True
            gone.set()
        elif leave_after is not None and len(reply.chunks) >= leave_after:
            gone.set()

    if leave_at is not None:
        asyncio.get_running_loop().call_later(leave_at, gone.set)
    async with asyncio.timeout(60):  # a virtual machine may stand still for seconds
        await app(scope, receive, send)
    return reply


def call(app: Callable[..., Awaitable[None]], method: str, path: str, data: object = None, **kwargs: Any) -> Reply:
    return asyncio.run(ask(app, method, path, data, **kwargs))


def error_of(reply: Reply, status: int) -> dict[str, Any]:
    assert reply.status == status, reply.body
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"] and error["code"]
    assert "Traceback" not in error["message"] and "site-packages" not in error["message"]
    return error
