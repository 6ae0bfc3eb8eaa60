"""Two ways to hold a conversation, one face: a model in an engine of our own, or a server elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from octavo.config.args import EngineArgs
from octavo.errors import EngineDead, InvalidRequest, OctavoError

if TYPE_CHECKING:
    import http.client

    from octavo.llm import AsyncLLM

Message = dict[str, str]


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None


class Talker(Protocol):
    """Streams answers. `stream` yields text as it comes and, last, a `Usage`; closing the iterator stops the answer."""

    name: str

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Generator[str | Usage, None, None]: ...

    def close(self) -> None: ...


class LocalTalker:
    """An `AsyncLLM` on a loop in a thread: the main thread waits on a queue, so Ctrl-C reaches it at once."""

    def __init__(self, args: EngineArgs) -> None:
        from octavo.llm import AsyncLLM
        from octavo.llm.progress import LoadingBar

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="octavo-chat", daemon=True)
        self._thread.start()
        try:
            with LoadingBar() as bar:
                self._llm: AsyncLLM = self._wait(AsyncLLM.start(args, on_progress=bar.update))
        except BaseException:
            self._stop_loop()
            raise
        self.name = self._llm.model_names[0]

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Generator[str | Usage, None, None]:
        from octavo.cli.sampling import params_from

        params = params_from(self._llm.default_sampling, options)
        prompt = self._llm.render_chat(list(messages))
        pieces: queue.SimpleQueue[str | Usage | BaseException] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async for out in self._llm.generate(prompt, params):
                    done = out.outputs[0]
                    if done.delta:
                        pieces.put(done.delta)
                    if done.error:
                        raise OctavoError(done.error)
                reason = done.finish_reason.value if done.finish_reason else None
                pieces.put(Usage(len(out.prompt_token_ids), out.num_cached_tokens, len(done.token_ids), reason))
            except BaseException as error:
                pieces.put(error)

        task = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                piece = pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
                if isinstance(piece, Usage):
                    return
        finally:
            task.cancel()

    def close(self) -> None:
        try:
            self._wait(self._llm.close())
        finally:
            self._stop_loop()

    def _wait(self, coroutine: Any) -> Any:
        future: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        async def wind_up() -> None:
            """What was cancelled ends in its own way: a start kills its processes."""
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=2)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(wind_up(), self._loop)
        self._thread.join(timeout=5)


class RemoteTalker:
    """Any OpenAI-compatible server, over the standard library's HTTP client."""

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        from urllib.parse import urlsplit

        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest.field("--url", url, "http://HOST:PORT or https://HOST[:PORT]")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self.name = model or self._first_model()

    def stream(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Generator[str | Usage, None, None]:
        body = {"model": self.name, "messages": list(messages), "stream": True, **options}
        body["stream_options"] = {"include_usage": True}
        connection = self._connect()
        try:
            connection.request("POST", f"{self._prefix}/v1/chat/completions", json.dumps(body).encode(), self._headers)
            response = self._checked(connection.getresponse())
            reason: str | None = None
            usage: dict[str, Any] = {}
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                event = json.loads(data)
                if event.get("error"):
                    raise OctavoError(_message(event))
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    reason = choice.get("finish_reason") or reason
                    if text := (choice.get("delta") or {}).get("content"):
                        yield text
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            yield Usage(usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0), reason)
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing is held between answers."""

    def _connect(self) -> http.client.HTTPConnection:
        import http.client

        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=600)

    def _checked(self, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        if response.status != 200:
            raw = response.read(65536)
            try:
                text = _message(json.loads(raw))
            except ValueError:
                text = raw[:200].decode(errors="replace")
            raise OctavoError(f"the server answered {response.status}: {text}")
        return response

    def _first_model(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"{self._prefix}/v1/models", headers=self._headers)
            models = json.loads(self._checked(connection.getresponse()).read())
            return str(models["data"][0]["id"])
        except OSError as error:
            where = f"{self._host}:{self._port or ''}".rstrip(":")
            raise EngineDead(f"no server answers at {where}: {error.strerror or error}") from None
        finally:
            connection.close()


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", error) if isinstance(error, dict) else error or body)
