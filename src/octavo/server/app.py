"""The ASGI application: who may call, which handler answers, what becomes of errors and of clients that leave.

The path of the raw ASGI scope is looked up in the table of `routes.py`: nothing is redirected, normalised or rebuilt
from the Host header, so the path that was checked for a key is the path that is served (S07).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from octavo.config.server import ServerConfig
from octavo.errors import NotFound, OctavoError, QueueFull
from octavo.server.auth import Keys
from octavo.server.errors import Draining, Loading, WrongMethod, describe
from octavo.server.exchange import Disconnected, Exchange, Receive, Scope, Send
from octavo.server.openai.sse import error_event
from octavo.server.ports import LLMPort
from octavo.server.routes import ROUTES, Handler, Methods, Route, Router

log = logging.getLogger("octavo.server")

ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class App:
    """See the module. `attach` gives it the model, so that /health can say "loading" before."""

    def __init__(self, llm: LLMPort | None, config: ServerConfig) -> None:
        self.config = config
        self.keys = Keys(config.api_key)
        self._router = Router(ROUTES)
        self.draining = False
        self.started = int(time.time())
        self._llm = llm
        self.open_requests = 0
        self._work: set[asyncio.Task[None]] = set()

    # -- what handlers ask ------------------------------------------------------------------------------------------
    @property
    def routes(self) -> tuple[Route, ...]:
        return self._router.routes

    def ready(self) -> LLMPort:
        """The model. Raises: Loading, Draining, EngineDead."""
        if self._llm is None:
            raise Loading("loading")
        if self.draining:
            raise Draining("draining")
        self._llm.check_health()
        return self._llm

    @property
    def llm(self) -> LLMPort:
        """The model, also while draining or dead. Raises: Loading."""
        if self._llm is None:
            raise Loading("loading")
        return self._llm

    def salt(self, exchange: Exchange, given: str | None) -> str | None:
        """The cache salt of a request: the client's, within its key's own space where keys are kept apart (S18)."""
        if exchange.cache_salt is None:
            return given
        return hashlib.sha256(f"{exchange.cache_salt}\0{given or ''}".encode("utf-8", "surrogatepass")).hexdigest()

    # -- life -------------------------------------------------------------------------------------------------------
    def attach(self, llm: LLMPort) -> None:
        self._llm = llm

    def end_all(self) -> None:
        """Ends every open request with an error that says the server is shutting down."""
        for task in list(self._work):
            task.cancel()

    # -- ASGI -------------------------------------------------------------------------------------------------------
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if root := self.config.root_path:
            path = path.removeprefix(root) if path.startswith(root + "/") else path
        exchange = Exchange(scope, receive, send, path=path, request_id=secrets.token_hex(12))
        begin = time.perf_counter()
        try:
            await self._serve(exchange)
        except Disconnected:
            exchange.status = exchange.status or 499
        except OctavoError as error:
            await self._refuse(exchange, error)
        except Exception as error:
            log.exception("request %s failed inside the server", exchange.request_id)
            await self._refuse(exchange, error)
        if self.config.access_log:
            took = time.perf_counter() - begin
            log.info("%s %s %d %.3f s", scope["method"], _printable(path), exchange.status, took)

    async def _serve(self, exchange: Exchange) -> None:
        methods = self._router.at(exchange.path)
        if not methods or not all(route.open for route in methods.values()):
            key = self.keys.check(exchange.header(b"authorization"))
            if self.config.isolate_api_keys:
                exchange.cache_salt = key
        method = exchange.scope["method"]
        handler = _chosen(methods, "GET" if method == "HEAD" else method).handler
        if method != "POST":
            await handler(self, exchange)
            return
        if self.open_requests >= self.config.max_open_requests:
            if self._llm is not None:
                self._llm.metrics.rejections.inc(label="open_requests")
            raise QueueFull(f"the server has {self.open_requests} open requests, as many as it allows; try again later")
        self.open_requests += 1
        try:
            exchange.data = await exchange.body(self.config.max_body_bytes, self.config.body_timeout)
            await self._watched(handler, exchange)
        finally:
            self.open_requests -= 1

    async def _watched(self, handler: Handler, exchange: Exchange) -> None:
        """Runs a handler in a task of its own and cancels it when the client leaves: what it holds in the engine is
        aborted on the way out, streaming or not, queued or running (R12)."""
        work = asyncio.ensure_future(_call(handler, self, exchange))
        gone = asyncio.ensure_future(exchange.disconnected())
        self._work.add(work)
        try:
            await asyncio.wait((work, gone), return_when="FIRST_COMPLETED")
            if not work.done():
                raise Disconnected
            if work.cancelled():
                raise Draining("ended at shutdown")
            work.result()
        finally:
            self._work.discard(work)
            gone.cancel()
            if not work.done():
                await _cancelled(work)

    async def _refuse(self, exchange: Exchange, error: Exception) -> None:
        status, body, headers = describe(error)
        if exchange.streaming:
            await exchange.end_events(error_event(body))
        elif not exchange.started:
            if self.draining:
                headers.append((b"connection", b"close"))
            await exchange.json(body, status=status, headers=headers)


def _chosen(methods: Methods, method: str) -> Route:
    """Raises: NotFound, WrongMethod."""
    if not methods:
        raise NotFound("no such route; GET /openapi.json lists them")
    if method not in methods:
        allow = ", ".join(sorted([*methods, "HEAD"] if "GET" in methods else methods))
        raise WrongMethod(f"method: got {method[:20]}, allowed: {allow}", allow=allow)
    return methods[method]


async def _call(handler: Handler, app: App, exchange: Exchange) -> None:
    await handler(app, exchange)


async def _cancelled(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.wait((work,))
    if not work.cancelled() and (error := work.exception()) is not None and not isinstance(error, OctavoError):
        log.error("a request failed while it was being cancelled", exc_info=error)


def _printable(path: str) -> str:
    """A path for a log line: no control characters, no novel."""
    return path[:200].encode("unicode_escape").decode("ascii")


def build_app(llm: LLMPort | None, config: ServerConfig) -> ASGIApp:
    """The application with its middlewares. `llm` may come later, through `App.attach` on the innermost app.

    Raises: ConfigError.
    """
    return with_cors(App(llm, config), config)


def with_cors(app: App, config: ServerConfig) -> ASGIApp:
    """Answers browsers' preflight requests, which carry no key, before keys are checked."""
    if not config.allowed_origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=config.allowed_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("authorization", "content-type"),
        expose_headers=("x-request-id",),
    )
