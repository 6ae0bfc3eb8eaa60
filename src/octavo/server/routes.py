"""The endpoints, one row each: routing, the keys, the OpenAPI document and the tests read this table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from octavo.server import info
from octavo.server.exchange import Exchange
from octavo.server.openai import protocol as p
from octavo.server.openai.chat import chat_completions
from octavo.server.openai.completions import completions
from octavo.server.openai.tokens import detokenize, tokenize

if TYPE_CHECKING:
    from octavo.server.app import App

Handler: TypeAlias = Callable[["App", Exchange], Awaitable[None]]
Methods: TypeAlias = Mapping[str, "Route"]
"""The routes of one path, by method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: Literal["GET", "POST"]
    """GET answers HEAD too. What POST does is work: counted, bounded and cancelled when the client leaves."""
    path: str
    """Exact; or ends in `/{name}`, which takes the rest of a path, slashes included."""
    handler: Handler
    summary: str
    """For the OpenAPI document."""
    body: type[msgspec.Struct] | None = None
    """What the handler decodes."""
    reply: type[msgspec.Struct] | None = None
    """What it sends; None where that is no Struct."""
    media: str = "application/json"
    """Type of the reply."""
    streams: bool = False
    """Answers with server-sent events when the body asks for them."""
    open: bool = False
    """Needs no key: what load balancers and supervisors poll. Nothing else is open. The same for all methods of a
    path, since the key is looked at before the method is."""

    @property
    def variable(self) -> str | None:
        """The name of the variable part."""
        _, brace, name = self.path.partition("{")
        return name.removesuffix("}") if brace else None


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions,
        summary="Continue a prompt.",
        body=p.CompletionBody,
        reply=p.CompletionReply,
        streams=True,
    ),
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat_completions,
        summary="Answer a conversation.",
        body=p.ChatBody,
        reply=p.ChatReply,
        streams=True,
    ),
    Route(
        method="GET",
        path="/v1/models",
        handler=info.models,
        summary="The models served here.",
        reply=p.ModelList,
    ),
    Route(
        method="GET",
        path=info.MODEL_PREFIX + "{model}",
        handler=info.model,
        summary="One of them.",
        reply=p.ModelCard,
    ),
    Route(
        method="POST",
        path="/tokenize",
        handler=tokenize,
        summary="Text or messages to token ids.",
        body=p.TokenizeBody,
        reply=p.TokenizeReply,
    ),
    Route(
        method="POST",
        path="/detokenize",
        handler=detokenize,
        summary="Token ids to text.",
        body=p.DetokenizeBody,
        reply=p.DetokenizeReply,
    ),
    Route(
        method="GET",
        path="/health",
        handler=info.health,
        summary="200 when requests are served. Needs no key.",
        open=True,
    ),
    Route(method="GET", path="/ping", handler=info.health, summary="As /health. Needs no key.", open=True),
    Route(
        method="GET",
        path="/metrics",
        handler=info.metrics,
        summary="Prometheus metrics.",
        media="text/plain",
    ),
    Route(method="GET", path="/version", handler=info.version, summary="The server's version."),
    Route(method="GET", path="/openapi.json", handler=info.openapi, summary="This document."),
    Route(method="GET", path="/", handler=info.page, summary="A page for people.", media="text/html"),
)
"""Every endpoint, in the order of the OpenAPI document."""


class Router:
    """Finds the routes of a path in a request: nothing is normalised, so what was checked for a key is served (S07)."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._beneath: dict[str, dict[str, Route]] = {}
        """By what comes before the variable part."""
        for route in self.routes:
            start, brace, _ = route.path.partition("{")
            methods = (self._beneath if brace else self._exact).setdefault(start, {})
            assert route.method not in methods
            assert all(other.open == route.open for other in methods.values())
            methods[route.method] = route

    def at(self, path: str) -> Methods:
        """The routes of a path; empty where it has none. An exact path goes before one with a variable part."""
        if (exact := self._exact.get(path)) is not None:
            return exact
        return next((methods for start, methods in self._beneath.items() if path.startswith(start)), {})
