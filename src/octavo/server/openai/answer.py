"""Driving the engine for one HTTP request: several prompts, one answer or one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

from octavo.errors import StepFailed
from octavo.server.exchange import Exchange
from octavo.server.openai.protocol import PromptTokensDetails, Usage
from octavo.server.openai.sse import DONE, StreamHead
from octavo.server.ports import LLMPort
from octavo.types import FinishReason, RequestOutput, SamplingParams


class Events(Protocol):
    """Turns an output of prompt number `place` into the bytes of its events; empty where there is nothing to tell."""

    def __call__(self, place: int, output: RequestOutput, /) -> bytes: ...


class Job:
    """The prompts of one HTTP request on their way through the engine."""

    def __init__(
        self,
        llm: LLMPort,
        exchange: Exchange,
        *,
        prompts: Sequence[str | list[int]],
        params: SamplingParams,
        id: str,
        priority: int,
        salt: str | None,
        hide: bool = False,
    ) -> None:
        """`hide`: what is generated is not shown (max_tokens 0), and does not count."""
        self._llm = llm
        self._exchange = exchange
        self._prompts = prompts
        self._params = params
        self._id = id
        self._priority = priority
        self._salt = salt
        self._hide = hide

    def _open(self, place: int, *, stream: bool) -> AsyncGenerator[RequestOutput, None]:
        """Submits prompt number `place`. Closing the iterator aborts it."""
        outputs = self._llm.generate(
            self._prompts[place],
            self._params,
            request_id=f"{self._id}-{place}" if len(self._prompts) > 1 else self._id,
            priority=self._priority,
            cache_salt=self._salt,
            stream=stream,
        )
        return cast("AsyncGenerator[RequestOutput, None]", outputs)

    async def whole(self) -> list[RequestOutput]:
        """The last output of each prompt. Raises: StepFailed, and what AsyncLLM.generate raises."""
        if len(self._prompts) == 1:
            return [await self._last(0)]
        return await together([self._last(place) for place in range(len(self._prompts))])

    async def _last(self, place: int) -> RequestOutput:
        last: RequestOutput | None = None
        async with aclosing(self._open(place, stream=False)) as outputs:
            async for output in outputs:
                last = output
        assert last is not None, "the engine ended a request without an output"
        _check(last)
        return last

    async def stream(self, head: StreamHead, events: Events) -> None:
        """Sends the events of all prompts as they come, then usage if it was asked for, then [DONE]. What ends the
        stream travels with the last token's event in one write. Raises as `whole`."""
        exchange = self._exchange
        count = len(self._prompts)
        opening, opened = asyncio.Lock(), False
        ended: list[RequestOutput] = []

        async def one(place: int) -> None:
            nonlocal opened
            send = exchange.send
            async with aclosing(self._open(place, stream=True)) as outputs:
                async for output in outputs:
                    if output.finished or len(output.outputs) > 1:
                        _check(output)
                    data = events(place, output)
                    if not data and not output.finished:
                        continue
                    if not opened:
                        async with opening:
                            if not opened:
                                await exchange.start_events()
                                opened = True
                    if output.finished:
                        ended.append(output)
                        if len(ended) == count:
                            tail = head.usage_event(self.usage(ended)) if head.usage else b""
                            await exchange.end_events(data + tail + DONE)
                            return
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})

        if count == 1:
            await one(0)
        else:
            await together([one(place) for place in range(count)])

    def usage(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Counts of the request, from the last output of each prompt."""
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        made = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
        shown = 0 if self._hide else made
        cached = sum(output.num_cached_tokens for output in outputs)
        return Usage(prompt, shown, prompt + shown, PromptTokensDetails(cached))


def _check(output: RequestOutput) -> None:
    for choice in output.outputs:
        if choice.finish_reason is FinishReason.ERROR:
            raise StepFailed(choice.error or "the engine gave no reason")


async def together(works: Sequence[Awaitable[Any]]) -> list[Any]:
    """Runs all; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_coroutine(work)) for work in works]
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


async def _coroutine(work: Awaitable[Any]) -> Any:
    return await work
