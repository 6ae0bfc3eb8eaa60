"""The server's life: listen, load, serve, drain.

bind ── load ──────────── ready ─────────────────── SIGTERM ── drain ── end
  │      │                  │                          │         │
  │      /health 503        /health 200                │         open requests finish, or end with an error
  │      (loading)          (503 and a restart         │         when the grace time is over
  a busy port is told       when the engine dies)      a second signal ends them at once
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

import octavo
from octavo.config.args import EngineArgs
from octavo.config.server import ServerConfig
from octavo.errors import EngineDead, OctavoError
from octavo.server.bind import bind, url

if TYPE_CHECKING:
    from octavo.engine.spawn import Spawned
    from octavo.server.app import App
    from octavo.server.ports import LLMPort
    from octavo.server.protocol import QuietServer

log = logging.getLogger("octavo.server")

Start: TypeAlias = "Callable[[], Coroutine[Any, Any, LLMPort]]"
HEAD_START = 0.02
"""Seconds given to the engine's start before this process imports its HTTP half: the engine takes longest."""
ENV_KEY = "OCTAVO_API_KEY"
HEALTH_INTERVAL = 0.5
RESTART_DELAY = 2.0
"""Seconds /health stays at 503 after an engine died, so that whoever watches sees it."""
RESTART_WINDOW = 300.0
MAX_RESTARTS = 3
"""Engine restarts within RESTART_WINDOW; one more death ends the server."""


def serve(
    args: EngineArgs,
    config: ServerConfig,
    *,
    engine: Spawned | None = None,
    on_ready: Callable[[str], None] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> None:
    """Serves until a signal ends it. `engine`: a process for the first engine, begun before. `on_ready` gets the one
    line that says where (default: it is logged); `on_progress(phase, fraction)` is called from another thread while the
    model loads.

    Raises: ConfigError (a busy port, a plan that does not fit), ModelError, FetchError; EngineDead when it keeps dying.
    """
    begun = [engine] if engine is not None else []

    async def start() -> LLMPort:
        from octavo.llm import AsyncLLM

        spawned = begun.pop() if begun else None
        return await AsyncLLM.start(
            args, spawned=spawned, on_progress=on_progress, metrics_prefix=config.metrics_prefix
        )

    run(start, with_env_keys(config), on_ready=on_ready)


def with_env_keys(config: ServerConfig) -> ServerConfig:
    """Keys of the environment count where the command line gives none. Raises: ConfigError."""
    from_env = os.environ.get(ENV_KEY, "")
    if config.api_key or not from_env:
        return config
    return msgspec.structs.replace(config, api_key=tuple(key for key in from_env.split(",") if key))


def run(start: Start, config: ServerConfig, *, on_ready: Callable[[str], None] | None = None) -> None:
    """As `serve`, with whatever `start` gives as the model (tests hand over a fake)."""
    import uvloop

    begin = time.monotonic()
    config.check_exposure()
    _raise_file_limit()
    sock = bind(config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Life(start, config, sock, begin=begin, on_ready=on_ready).live())
    finally:
        sock.close()
        if config.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(config.uds)


def _raise_file_limit() -> None:
    """A connection is a file, and the usual soft limit of 1,024 is less than max_open_requests."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Life:
    """One run of the server."""

    def __init__(
        self,
        start: Start,
        config: ServerConfig,
        sock: socket.socket,
        *,
        begin: float,
        on_ready: Callable[[str], None] | None,
    ) -> None:
        self._start = start
        self._config = config
        self._sock = sock
        self._begin = begin
        self._on_ready = on_ready or log.info
        self._app: App | None = None
        self._server: QuietServer | None = None
        self._signals = 0
        self._stop = asyncio.Event()
        self._llm: LLMPort | None = None

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not the main thread (tests): no signals then
                loop.add_signal_handler(number, self._on_signal)
        starting = asyncio.ensure_future(self._start())
        await asyncio.wait((starting,), timeout=HEAD_START)
        app, server = self._open()
        serving = asyncio.ensure_future(server.serve(sockets=[self._sock]))
        working = asyncio.ensure_future(self._load_and_watch(app, starting))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((serving, working, stopping), return_when="FIRST_COMPLETED")
            if working.done():
                working.result()  # loading failed, or the engine keeps dying: the caller says so
            if serving.done():
                serving.result()
            await self._drain(app, server, serving)
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait((working,))
            await self._end(server, serving)

    def _open(self) -> tuple[App, QuietServer]:
        from octavo.server.app import App, with_cors
        from octavo.server.protocol import make_server

        self._app = App(None, self._config)
        self._server = make_server(with_cors(self._app, self._config), self._config)
        return self._app, self._server

    def stop(self) -> None:
        """As the first signal."""
        self._stop.set()

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._stop.set()
        elif self._app is not None and self._server is not None:
            log.warning("second signal: ending %d open requests now", self._app.open_requests)
            self._app.end_all()
            self._server.force_exit = True

    async def _load_and_watch(self, app: App, starting: asyncio.Future[LLMPort]) -> None:
        """The first start may fail, and says why; a later one that fails counts as one more death."""
        deaths: list[float] = []
        while True:
            why = "the engine died; its open requests have ended with an error"
            try:
                llm = await starting
            except (OctavoError, OSError) as error:
                if self._llm is None:
                    raise
                why = f"the engine could not be started again: {error}"
            else:
                self._take(app, llm, first=not deaths)
                await self._until_dead(llm)
            now = time.monotonic()
            deaths = [at for at in deaths if now - at < RESTART_WINDOW] + [now]
            if len(deaths) > MAX_RESTARTS:
                times = f"{len(deaths)} times within {RESTART_WINDOW / 60:.0f} minutes"
                raise EngineDead(f"the engine died or could not be started {times}; the last time: {why}")
            log.error("%s; a new one starts", why)
            await asyncio.sleep(RESTART_DELAY)
            with contextlib.suppress(OctavoError):
                if self._llm is not None:
                    await self._llm.close()
            starting = asyncio.ensure_future(self._start())

    def _take(self, app: App, llm: LLMPort, *, first: bool) -> None:
        self._llm = llm
        llm.metrics.startup.set(time.monotonic() - self._begin, label="total")
        app.attach(llm)
        if first:
            self._on_ready(self._ready_line(llm))
        # What is there now stays; later collections need not look at it.
        gc.collect()
        gc.freeze()

    @staticmethod
    async def _until_dead(llm: LLMPort) -> None:
        try:
            while True:
                llm.check_health()
                await asyncio.sleep(HEALTH_INTERVAL)
        except EngineDead:
            return

    def _ready_line(self, llm: LLMPort) -> str:
        seconds = time.monotonic() - self._begin
        where = url(self._sock, self._config)
        return f"Octavo {octavo.__version__} serves {llm.model_names[0]} at {where} (ready after {seconds:.2f} s)"

    async def _drain(self, app: App, server: QuietServer, serving: asyncio.Future[None]) -> None:
        """Lets open requests finish within the grace time, then ends them."""
        app.draining = True
        server.should_exit = True  # stops listening, closes idle connections, waits for the others
        if app.open_requests:
            log.info("draining: %d open requests have %g s", app.open_requests, self._config.grace_seconds)
        done, _ = await asyncio.wait((serving,), timeout=self._config.grace_seconds)
        if not done:
            log.warning("grace time is over: ending %d open requests", app.open_requests)
            app.end_all()
            await asyncio.wait((serving,), timeout=1.0)  # their last events go out

    async def _end(self, server: QuietServer, serving: asyncio.Future[None]) -> None:
        server.should_exit = server.force_exit = True
        await asyncio.wait((serving,), timeout=2.0)
        serving.cancel()
        if self._llm is not None:
            with contextlib.suppress(OctavoError):
                await self._llm.close()
