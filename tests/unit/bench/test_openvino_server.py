"""The HTTP adapter of OpenVINO's pipeline, on a pipeline that counts."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
from typing import Any

from bench.compare.openvino_server import Desk, Found, connected, generate


class Counting:
    """Token n of a request is its first prompt token plus n."""

    def __init__(self) -> None:
        self.open: dict[int, Any] = {}

    def add(self, key: int, prompt: list[int], out: int) -> None:
        self.open[key] = iter(range(prompt[0], prompt[0] + out)), prompt[0] + out - 1

    def step(self) -> list[Found]:
        found: list[Found] = []
        for key, (tokens, last) in list(self.open.items()):
            token = next(tokens)
            found.append((key, [token], token == last))
            if token == last:
                del self.open[key]
        return found


async def post(port: int, path: str, body: dict[str, Any]) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    text = (await reader.read()).decode()
    writer.close()
    return text


def test_requests_at_once_are_each_answered_with_their_own_tokens() -> None:
    ours, theirs = multiprocessing.Pipe()
    engine = threading.Thread(target=generate, args=(Counting(), ours))
    engine.start()

    async def ask() -> tuple[str, str, str]:
        theirs.recv()
        desk = Desk(theirs)
        desk.listen()
        server = await asyncio.start_server(lambda r, w: connected(desk, r, w), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await asyncio.gather(
                post(port, "/v1/completions", {"prompt": [10, 1], "max_tokens": 3}),
                post(port, "/v1/completions", {"prompt": [70], "max_tokens": 2, "stream": True}),
                post(port, "/v1/models", {}),
            )

    whole, streamed, unknown = asyncio.run(ask())
    theirs.close()
    engine.join(10)
    assert not engine.is_alive(), "it ends with the port"
    body = json.loads(whole.partition("\r\n\r\n")[2])
    assert body["choices"][0]["text"] == " 10 11 12"
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 3}
    events = [e for e in streamed.partition("\r\n\r\n")[2].split("\n\n") if e]
    texts = [json.loads(e.removeprefix("data: "))["choices"][0]["text"] for e in events[:-1]]
    assert (texts, events[-1]) == ([" 70", " 71", ""], "data: [DONE]")
    assert unknown.startswith("HTTP/1.1 404")
