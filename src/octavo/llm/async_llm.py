"""`AsyncLLM`: the engine in a process of its own, many requests at once on one event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from octavo.config.args import EngineArgs
from octavo.config.resolve import EngineConfig
from octavo.engine.front import Front
from octavo.engine.messages import EngineStats, Outputs
from octavo.engine.remote import ProcClient
from octavo.engine.spawn import Spawned
from octavo.errors import ConfigError, EngineDead, InvalidRequest, QueueFull, shown
from octavo.facts import Facts
from octavo.llm.front import ModelFront
from octavo.llm.intake import Intake, Prepared, Prompt, check_params, split_prompt
from octavo.llm.outputs import OutputProcessor, RequestState, publish
from octavo.llm.progress import LoadingBar
from octavo.llm.reporter import Reporter
from octavo.obs.log import get_logger
from octavo.obs.metrics import PREFIX, Metrics
from octavo.text.chat import Ask, Message
from octavo.types import RequestOutput, SamplingParams

log = get_logger(__name__)
T = TypeVar("T")

LAST_CALL = 0.5
"""Seconds that a cancelled start waits for its thread, whose processes have ended: it may be building a tokenizer."""
LONG_TEXT = 8_000
"""Characters (or ids) from which a prompt is prepared on a thread, so that the event loop never stalls."""


class AsyncLLM:
    """Start with `await AsyncLLM.start(args)`. Belongs to the event loop it was started on."""

    facts: Facts
    config: EngineConfig

    def __init__(
        self, client: ProcClient, front: ModelFront, args: EngineArgs, *, metrics_prefix: str = PREFIX
    ) -> None:
        self.facts, self.config = client.facts, client.config
        self.model_names: list[str] = list(self.config.model_names)
        self.tokenizer, self.chat_template = front.tokenizer, front.chat_template
        self.default_sampling: dict[str, Any] = dict(front.default_sampling)
        self.metrics = Metrics(prefix=metrics_prefix, model=self.model_names[0])
        self._client, self._front = client, front
        self._intake = Intake(tokenizer=front.tokenizer, facts=self.facts, config=self.config, seed=args.seed)
        self._outputs = OutputProcessor(tokenizer=front.tokenizer, metrics=self.metrics)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="octavo-text")
        self._preparing = 0
        self._dead: EngineDead | None = None
        self._draining = self._ended = self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._describe()
        client.attach(asyncio.get_running_loop(), on_outputs=self._on_outputs, on_death=self._on_death)
        self._reporter = asyncio.create_task(Reporter(self.metrics, self.stats).run())

    @classmethod
    async def start(
        cls,
        args: EngineArgs,
        *,
        spawned: Spawned | None = None,
        on_progress: Callable[[str, float], None] | None = None,
        metrics_prefix: str = PREFIX,
    ) -> AsyncLLM:
        """Start the engine process (or take the one `spawned`) and load the model; the tokenizer is built meanwhile.

        `on_progress(phase, fraction)` is called from another thread; default: a bar on a terminal. Raises ConfigError,
        DoesNotFit, ModelError, FetchError, EngineDead. Cancelling ends the engine's process, and a fetch, at once.
        """
        if not isinstance(args, EngineArgs):
            raise ConfigError(f"AsyncLLM.start: got {shown(args)}, allowed: EngineArgs")
        fronts: list[ModelFront] = []

        def build(front: Front) -> None:
            fronts.append(ModelFront.build(front, args))

        def start() -> ProcClient:
            with LoadingBar() as bar:
                return ProcClient.start(args, spawned=spawned, on_progress=on_progress or bar.update, on_front=build)

        spawned = spawned or Spawned(args.executor, args.cpus)
        starting = _on_a_daemon(start)
        try:
            await asyncio.wait((starting,))
        except asyncio.CancelledError:
            spawned.close()  # wakes the thread, and ends a fetch
            starting.add_done_callback(_close_late)
            try:
                await asyncio.wait((starting,), timeout=LAST_CALL)
            finally:
                starting.cancel()
            raise
        return cls(starting.result(), fronts[0], args, metrics_prefix=metrics_prefix)

    # -- asking -------------------------------------------------------------------------------------------------------
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        parse_special: bool = False,
        stream: bool = True,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer as it grows: cumulative outputs with deltas, the last one finished.

        A consumer that is slower than the engine gets fewer, larger deltas. `stream=False` gives the last output only.
        Closing or cancelling the iterator, in any state, aborts the request. Before the first item: raises
        InvalidRequest, PromptTooLong, QueueFull, EngineDead; later EngineDead. A request whose own step fails ends with
        finish_reason "error" and a message.
        """
        state: RequestState | None = None
        news = asyncio.Event()
        try:
            state = await self._admit(
                prompt,
                params,
                news.set,
                {
                    "request_id": request_id,
                    "priority": priority,
                    "cache_salt": cache_salt,
                    "parse_special": parse_special,
                },
            )
            while True:
                await news.wait()
                news.clear()
                if not stream and not state.finished:
                    continue
                output = state.take()
                yield output
                if output.finished:
                    return
        finally:
            if state is not None and not state.finished:
                self._abort(state)

    async def _admit(
        self, prompt: Prompt, params: SamplingParams, on_update: Callable[[], object], options: dict[str, Any]
    ) -> RequestState:
        """Check, tokenise, hand over. Nothing stays behind where this raises or is cancelled."""
        arrival = time.monotonic()
        self.check_health()
        check_params(params)
        self._check_room(params.n)
        self._preparing += params.n
        self._idle.clear()
        try:
            try:
                prepared = await self._prepare(prompt, params, arrival, options)
            except InvalidRequest:
                self.metrics.rejections.inc(label="invalid")
                raise
            self.check_health()
            if self._ended:
                raise QueueFull("the server is shutting down", retry_after=5)
            state = self._outputs.open(prepared, on_update)
        finally:
            self._preparing -= params.n
            self._note_idle()
        try:
            self._client.add(prepared.requests)
        except BaseException:
            self._outputs.abort(state)
            self._note_idle()
            raise
        return state

    async def _prepare(
        self, prompt: Prompt, params: SamplingParams, arrival: float, options: dict[str, Any]
    ) -> Prepared:
        text, ids = split_prompt(prompt)
        size = len(text) if text is not None else len(ids or ())

        def prepare() -> Prepared:
            return self._intake.prepare(prompt, params, arrival=arrival, **options)

        return prepare() if size <= LONG_TEXT else await self._on_thread(prepare)

    def _check_room(self, count: int) -> None:
        if self._draining:
            raise QueueFull("the server is shutting down", retry_after=5)
        open_now, limit = self.num_open, self.config.max_num_seqs + self.config.max_queue
        if count > limit:
            raise InvalidRequest.field("n", count, f"at most {limit}, what may run and wait here")
        if open_now + count > limit:
            self.metrics.rejections.inc(label="queue_full")
            rounds = math.ceil(max(1, open_now - self.config.max_num_seqs) / self.config.max_num_seqs)
            raise QueueFull(
                f"the queue is full: {open_now} sequences are open, allowed: {self.config.max_num_seqs} running and "
                f"{self.config.max_queue} waiting",
                retry_after=max(1, min(60, math.ceil(rounds * self.metrics.e2e.mean))),
            )

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, through the chat template. `chat_template_kwargs`: more names for the template.
        Raises InvalidRequest, also for a name there that rendering itself is made of."""
        ask = Ask(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self._front.render_chat(messages, ask)

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """As render_chat; long conversations are rendered on a thread, so that the event loop never stalls."""

        def render() -> list[int]:
            return self.render_chat(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )

        if sum(len(str(m.get("content", ""))) for m in messages) <= LONG_TEXT:
            return render()
        return await self._on_thread(render)

    # -- steering -----------------------------------------------------------------------------------------------------
    async def abort(self, request_id: str) -> None:
        """End a request; its iterator gives a last output with finish_reason "abort". Unknown ids are ignored."""
        state = self._outputs.requests.get(request_id)
        if state is not None:
            self._abort(state)
            if state.on_update is not None:
                state.on_update()

    async def reset_prefix_cache(self) -> None:
        """Forget cached blocks that nobody holds."""
        self.check_health()
        self._client.reset_prefix_cache()

    def check_health(self) -> None:
        """Raises EngineDead if the engine process has ended or was closed."""
        if self._dead is not None:
            raise EngineDead(str(self._dead))
        self._client.check()

    def stats(self) -> EngineStats:
        """The engine after its last step."""
        return self._client.stats

    @property
    def num_open(self) -> int:
        """Open sequences, with those still being tokenised."""
        return self._outputs.num_open + self._preparing

    @property
    def engine_pid(self) -> int:
        """Process id of the engine."""
        return self._client.pid

    async def drain(self, timeout: float) -> bool:
        """Refuse new requests and wait for the open ones, with those still being tokenised. After `timeout` seconds the
        rest is aborted, or refused: False."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
            return True
        except TimeoutError:
            self._ended = True
            for request_id in list(self._outputs.requests):
                await self.abort(request_id)
            return False

    async def close(self) -> None:
        """End the engine; open requests end with EngineDead, those still being tokenised too. Safe to call twice."""
        if self._closed:
            return
        self._closed = self._draining = True
        self._reporter.cancel()
        self._client.detach()
        self._end_all(EngineDead("the engine was closed"))
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._client.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- below --------------------------------------------------------------------------------------------------------
    def _describe(self) -> None:
        facts, metrics = self.facts, self.metrics
        for phase, seconds in facts.load_seconds.items():
            metrics.startup.set(seconds, label=phase)
        metrics.target_itl.value = self.config.scheduler.target_itl_ms / 1e3
        metrics.cache_config.labels = {
            "block_size": str(facts.block_size),
            "num_gpu_blocks": str(facts.num_blocks - 1),
            "block_bytes": str(facts.block_bytes),
            "enable_prefix_caching": str(self.config.scheduler.enable_prefix_caching),
        }

    def _on_outputs(self, message: Outputs) -> None:
        publish(self.metrics, message)
        before = self._outputs.num_open
        aborts = self._outputs.handle(message)
        if aborts:
            self._tell_abort(aborts)
        if self._outputs.num_open < before:
            self._note_idle()

    def _on_death(self, error: EngineDead) -> None:
        log.error("%s", error)
        self._end_all(error)

    def _end_all(self, error: EngineDead) -> None:
        self._dead = self._dead or error
        self._outputs.fail_all(error)
        self._note_idle()

    def _abort(self, state: RequestState) -> None:
        self._tell_abort(self._outputs.abort(state))
        self._note_idle()

    def _tell_abort(self, seq_ids: Sequence[int]) -> None:
        if seq_ids and self._dead is None:
            try:
                self._client.abort(seq_ids)
            except EngineDead:
                pass  # its death is about to be noticed, and ends everything

    def _note_idle(self) -> None:
        if not self.num_open:
            self._idle.set()

    async def _on_thread(self, call: Callable[[], T]) -> T:
        """Raises EngineDead where we are closed before its turn comes."""
        if self._closed:
            raise EngineDead("the engine was closed")
        running = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            running.cancel()
            raise
        if running.cancelled():  # by `close`, while the caller still waits
            raise EngineDead("the engine was closed")
        return running.result()


def _on_a_daemon(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run it on a thread for which neither the event loop nor the interpreter waits at its end."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="octavo-start", daemon=True).start()
    return asyncio.wrap_future(outcome)


def _close_late(starting: asyncio.Future[ProcClient]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
