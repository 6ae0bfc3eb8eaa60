"""The client against servers on loopback: what counts as a token, and what every failure is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

pytest.importorskip("aiohttp")

from aiohttp import web

from octavo.bench.client import CHAT, COMPLETIONS, Client, base_url, session
from octavo.bench.datasets import Ask
from octavo.bench.metrics import Answer
from octavo.errors import EngineDead, InvalidRequest, OctavoError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODIES = web.AppKey("bodies", list)


def sends(*events: object, end: bytes = b"data: [DONE]\n\n") -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        request.app[BODIES].append((request.headers.get("Authorization"), await request.json()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            data = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
            await response.write(data)
        await response.write(end)
        return response

    return handle


def refuses(status: int, body: object) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handle


T = TypeVar("T")


def with_client(
    handler: Handler, use: Callable[[Client], Awaitable[T]], *, endpoint: str = COMPLETIONS
) -> tuple[T, Sequence[object]]:
    """What `use` gives of a client of a server that answers with `handler`, and the bodies it was sent."""

    async def main() -> tuple[T, Sequence[object]]:
        app = web.Application()
        app[BODIES] = []
        app.router.add_post(endpoint, handler)
        app.router.add_get("/v1/models", refuses(200, {"data": [{"id": "first"}]}))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with session(api_key="k", timeout=20) as http:
                name = await Client(http, url, "").first_model()
                client = Client(http, url, name, endpoint=endpoint, options={"ignore_eos": True})
                return await use(client), app[BODIES]
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def asked(handler: Handler, ask: Ask, *, endpoint: str = COMPLETIONS) -> tuple[Answer, Sequence[object]]:
    return with_client(handler, lambda client: client.ask(ask), endpoint=endpoint)


def text(value: str | None, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"text": value, "finish_reason": finish}]}


def test_tokens_usage_and_body() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    # The empty text in the middle is a token that holds half a character; the last one only ends.
    handler = sends(text("a"), text(""), text("b"), text("", "length"), {"choices": [], "usage": usage})
    answer, bodies = asked(handler, Ask([1, 2, 3], 3))
    assert answer.error is None
    assert len(answer.stamps) == 3
    assert answer.stamps == sorted(answer.stamps)
    assert answer.ttft > 0
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (5, 2, 3)
    assert bodies == [
        (
            "Bearer k",
            {
                "model": "first",
                "prompt": [1, 2, 3],
                "max_tokens": 3,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    ]


def test_a_server_without_usage_is_counted_by_events() -> None:
    answer, _ = asked(sends(text("a"), text("b", "stop")), Ask([1, 2, 3], 9))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (3, 2, 0)


def test_chat() -> None:
    def delta(**fields: object) -> dict[str, object]:
        return {"choices": [{"delta": fields}]}

    events = (delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content="yes"), delta())
    answer, bodies = asked(sends(*events), Ask("hello", 4), endpoint=CHAT)
    assert len(answer.stamps) == 2
    body = bodies[0]
    assert isinstance(body, tuple)
    assert body[1]["messages"] == [{"role": "user", "content": "hello"}]


def test_an_event_may_come_in_pieces() -> None:
    pieces = (b'data: {"choices": [{"te', b'xt": "a"}]}\n', b"\n: a comment\n\n")
    answer, _ = asked(sends(*pieces, text("b")), Ask("x", 2))
    assert (answer.error, len(answer.stamps)) == (None, 2)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (refuses(503, {"error": {"message": "the queue\nis full"}}), "HTTP 503: the queue is full"),
        (refuses(404, "nothing here"), "HTTP 404: "),
        (sends(text("a"), {"error": {"message": "a step failed"}}), "in the stream: a step failed"),
        (sends(), "the stream held no token"),
        (sends(b"data: {nonsense\n\n"), "an event that cannot be read"),
    ],
)
def test_failures_have_names(handler: Handler, error: str) -> None:
    answer, _ = asked(handler, Ask("x", 2))
    assert answer.error is not None
    assert answer.error.startswith(error)


def test_nobody_answers() -> None:
    async def main() -> None:
        async with session() as http:
            await Client(http, "http://127.0.0.1:9", "").first_model()

    with pytest.raises(EngineDead, match=r"no server answers at http://127\.0\.0\.1:9"):
        asyncio.run(main())


def test_urls() -> None:
    assert base_url("localhost:8000/v1/") == "http://localhost:8000"
    assert base_url("https://host/prefix") == "https://host/prefix"
    with pytest.raises(InvalidRequest, match="http://HOST:PORT"):
        base_url("ftp://x")


def test_not_an_openai_server() -> None:
    async def main() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", refuses(200, ["surprise"]))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with session() as http:
                await Client(http, f"http://127.0.0.1:{runner.addresses[0][1]}", "").first_model()
        finally:
            await runner.cleanup()

    with pytest.raises(OctavoError, match="not an OpenAI-compatible"):
        asyncio.run(main())


def test_scores_of_a_prompt() -> None:
    """Of all tokens but the first; None from servers that score nothing, or only what they sampled."""

    def scored(body: object, status: int = 200) -> list[float] | None:
        return with_client(refuses(status, body), lambda client: client.score([5, 6, 7]))[0]

    def choice(logprobs: object) -> dict[str, object]:
        return {"choices": [{"text": "", "logprobs": logprobs}]}

    assert scored(choice({"token_logprobs": [None, -1.5, -0.25, -9.0]})) == [-1.5, -0.25]
    assert scored(choice({"token_logprobs": [-9.0]})) is None
    assert scored(choice({"content": [{"logprob": -9.0}]})) is None
    assert scored(choice(None)) is None
    with pytest.raises(OctavoError, match="HTTP 400: no echo here"):
        scored({"error": {"message": "no echo here"}}, 400)
