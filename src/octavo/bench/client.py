"""The load's HTTP client: one streamed request, stamped event by event. The only file that knows aiohttp.

It runs beside the server, often on the same cores, so it does little an event: split lines, decode four fields, note
the time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from octavo.bench.datasets import Ask
from octavo.bench.metrics import Answer
from octavo.errors import EngineDead, InvalidRequest, MissingExtra, OctavoError

try:
    import aiohttp
except ImportError:
    raise MissingExtra.needed_by("octavo bench serve", package="aiohttp", extra="bench") from None

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str | None:
        """None where there is no text field at all, which differs from an empty text (`_carries`)."""
        if self.delta is None:
            return self.text
        return self.delta.reasoning_content or self.delta.content


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(Struct):
    choices: Sequence[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)


class _Scores(Struct):
    token_logprobs: list[float | None]


class _ScoredChoice(Struct):
    logprobs: _Scores | None = None


class _Scored(Struct):
    choices: list[_ScoredChoice]


_scored = msgspec.json.Decoder(_Scored)


class Client:
    """Sends asks to one model of one server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        endpoint: str = COMPLETIONS,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """`options` go into every body, such as temperature or ignore_eos."""
        self._session, self._url, self._model = session, url, model
        self._endpoint, self._options = endpoint, dict(options or {})

    def body(self, ask: Ask) -> dict[str, object]:
        """What is posted for an ask."""
        content: dict[str, object] = {"prompt": ask.prompt}
        if self._endpoint == CHAT:
            messages = ask.prompt if ask.is_chat else [{"role": "user", "content": ask.prompt}]
            content = {"messages": messages}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self._model, **content, "max_tokens": ask.out, **self._options, **stream}

    async def ask(self, ask: Ask) -> Answer:
        """Stream one answer. Whatever fails becomes `Answer.error`: it counts as a failure of the server."""
        data = msgspec.json.encode(self.body(ask))
        stamps: list[float] = []
        usage = _Usage()
        sent = time.perf_counter()
        try:
            async with self._session.post(self._url + self._endpoint, data=data) as response:
                if response.status != 200:
                    error = f"HTTP {response.status}: {_words(await response.read())}"
                else:
                    usage, error = await _read(response, stamps)
        except TimeoutError:
            error = "timed out"
        except (aiohttp.ClientError, OSError) as failure:
            error = f"{type(failure).__name__}: {failure}"[:200]
        if not error and not stamps:
            error = "the stream held no token"
        counted = len(ask.prompt) if isinstance(ask.prompt, list) and not ask.is_chat else 0
        details = usage.prompt_tokens_details or _Details()
        return Answer(
            sent,
            stamps,
            counted if usage.prompt_tokens is None else usage.prompt_tokens,
            details.cached_tokens or 0,
            len(stamps) if usage.completion_tokens is None else usage.completion_tokens,
            ask.out,
            error or None,
        )

    async def score(self, ids: list[int]) -> list[float] | None:
        """The log-probability of each token of a prompt but the first; None where the server does not tell them.

        By `echo` and `logprobs` of /v1/completions. Raises OctavoError where it refuses.
        """
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        async with self._session.post(self._url + COMPLETIONS, data=msgspec.json.encode(body)) as response:
            raw = await response.read()
            if response.status != 200:
                raise OctavoError(f"HTTP {response.status}: {_words(raw)}")
        try:
            scores = _scored.decode(raw).choices[0].logprobs
        except (msgspec.DecodeError, IndexError):  # another shape: scores of what was sampled, if any
            return None
        found = scores.token_logprobs[1 : len(ids)] if scores is not None else []
        told = [score for score in found if score is not None]
        return told if len(told) == len(ids) - 1 else None

    async def first_model(self) -> str:
        """The first name of GET /v1/models. Raises EngineDead where nobody answers."""
        try:
            async with self._session.get(f"{self._url}/v1/models") as response:
                raw = await response.read()
                if response.status != 200:
                    raise OctavoError(f"the server answered {response.status} to /v1/models: {_words(raw)}")
                return str(msgspec.json.decode(raw)["data"][0]["id"])
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineDead(f"no server answers at {self._url}: {error}") from None
        except (msgspec.DecodeError, LookupError, TypeError):
            raise OctavoError(f"{self._url}/v1/models: not an OpenAI-compatible server's answer") from None


async def _read(response: aiohttp.ClientResponse, stamps: list[float]) -> tuple[_Usage, str]:
    """Events of a stream into `stamps`; usage as far as it was told, and what went wrong ("" for nothing)."""
    usage, rest = _Usage(), b""
    async for chunk in response.content.iter_any():
        now = time.perf_counter()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line[5:].strip() if line.startswith(b"data:") else b""
            if not data or data == b"[DONE]":
                continue
            try:
                event = _event.decode(data)
            except msgspec.DecodeError:
                return usage, f"an event that cannot be read: {data[:80].decode(errors='replace')}"
            if event.error:
                return usage, f"in the stream: {_words(data)}"
            usage = event.usage or usage
            choice = event.choices[0] if event.choices else None
            if choice is not None and _carries(choice, begun=bool(stamps)):
                stamps.append(now)
    return usage, ""


def _carries(choice: _Choice, *, begun: bool) -> bool:
    """An empty first event (a role), or an empty last one that only carries the finish reason, is not a token."""
    content = choice.content
    return bool(content) or (content == "" and begun and not choice.finish_reason)


def _words(raw: bytes) -> str:
    """A server's error message, short enough to count equal ones."""
    try:
        body = msgspec.json.decode(raw)
        error = body.get("error", body)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (msgspec.DecodeError, AttributeError):
        text = raw.decode(errors="replace")
    return " ".join(text.split())[:200]


def base_url(url: str) -> str:
    """Scheme, host, port and prefix without a trailing /v1. Raises InvalidRequest."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest.field("--url", url, "http://HOST:PORT or https://HOST[:PORT]")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


@asynccontextmanager
async def session(*, api_key: str | None = None, timeout: float = 900.0) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for `Client`: a connection a request, as many as there are requests open."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout),
        read_bufsize=1 << 20,
        headers=headers,
    ) as made:
        yield made
