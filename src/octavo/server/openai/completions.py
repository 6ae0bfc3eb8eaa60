"""POST /v1/completions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest
from octavo.server.decode import decode
from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Job
from octavo.server.openai.logprobs import HEAVY_SCORES, TextScores, joined, prompt_scores
from octavo.server.openai.params import check_model, check_priority, completion_params, prompts_of
from octavo.server.openai.protocol import CompletionBody, CompletionReply, TextChoice, TextLogprobs
from octavo.server.openai.sse import EventWriter, StreamHead
from octavo.server.ports import LLMPort
from octavo.types import Completion, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from octavo.server.app import App


async def completions(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    config = app.config
    body = decode(exchange.data, CompletionBody)
    model = check_model(body.model, llm.model_names)
    check_priority(body.priority, llm.config.scheduler.policy)
    params = completion_params(body, llm.default_sampling)
    prompts = prompts_of(body, llm.facts.vocab_size, config.max_prompts)
    if len(prompts) * params.n > config.max_streams:
        raise InvalidRequest(
            f"n: got {len(prompts)} prompts times n = {params.n}, allowed: at most {config.max_streams} answers",
            param="n",
        )
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs: allowed only without stream", param="prompt_logprobs")
    id = f"cmpl-{exchange.request_id}"
    salt = app.salt(exchange, body.cache_salt)
    hide = body.max_tokens == 0
    job = Job(llm, exchange, prompts=prompts, params=params, id=id, priority=body.priority, salt=salt, hide=hide)
    if body.stream:
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        head = StreamHead("text", id=id, created=int(time.time()), model=model, usage=wants_usage)
        await job.stream(head, TextEvents(llm, body, head, params, hide=hide))
        return
    outputs = await job.whole()
    scored = sum(len(output.prompt_logprobs or ()) for output in outputs)
    created = int(time.time())

    def build() -> CompletionReply:
        choices = [
            _choice(llm, body, params, output, choice, index=place * params.n + choice.index)
            for place, output in enumerate(outputs)
            for choice in output.outputs
        ]
        return CompletionReply(id, created, model, choices, job.usage(outputs))

    await exchange.json_of(build, heavy=scored > HEAVY_SCORES)


def _prompt_text(llm: LLMPort, output: RequestOutput) -> str:
    if output.prompt is not None:
        return output.prompt
    return llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)


def _choice(
    llm: LLMPort, body: CompletionBody, params: SamplingParams, output: RequestOutput, choice: Completion, *, index: int
) -> TextChoice:
    hide = body.max_tokens == 0
    text = "" if hide else choice.text
    echoed = _prompt_text(llm, output) if body.echo else ""
    scores: TextLogprobs | None = None
    if body.logprobs is not None:
        skip = params.skip_special_tokens
        table = TextScores(llm.tokenizer, output, top=body.logprobs, skip_special_tokens=skip)
        prompt = table.prompt(output, echoed) if body.echo else None
        scores = table.answer([], []) if hide else table.answer(choice.logprobs or (), choice.token_ids)
        scores = scores if prompt is None else joined(prompt, scores)
    finish = "length" if hide else choice.finish_reason
    reply = TextChoice(index, echoed + text, scores, finish, choice.stop_reason)
    if body.prompt_logprobs is not None:
        reply.prompt_logprobs = prompt_scores(llm.tokenizer, output.prompt_logprobs)
    return reply


class TextEvents:
    """Events of a completions stream."""

    def __init__(
        self, llm: LLMPort, body: CompletionBody, head: StreamHead, params: SamplingParams, *, hide: bool
    ) -> None:
        self._llm = llm
        self._head = head
        self._n = params.n
        self._skip = params.skip_special_tokens
        self._top = body.logprobs
        self._echo = bool(body.echo)
        self._hide = hide
        self._writers: dict[int, EventWriter] = {}
        self._scores: dict[int, TextScores] = {}

    def __call__(self, place: int, output: RequestOutput, /) -> bytes:
        if self._n == 1:
            return self._event(place, output, output.outputs[0])
        return b"".join(self._event(place * self._n + c.index, output, c) for c in output.outputs)

    def _event(self, index: int, output: RequestOutput, choice: Completion) -> bytes:
        writer = self._writers.get(index)
        finish = choice.finish_reason
        if writer is None:
            if not choice.delta_ids and finish is None:
                return b""
            writer = self._writers[index] = EventWriter(self._head, index)
            if self._echo or self._hide:
                return self._first(writer, index, output, choice)
        elif writer.finished or not (choice.delta_ids or finish):
            return b""
        if finish is None and self._top is None:
            return writer.event(choice.delta)
        return writer.full(
            choice.delta,
            scores=self._score(index, output, choice) if self._top is not None else None,
            finish=finish,
            stop=choice.stop_reason,
        )

    def _score(self, index: int, output: RequestOutput, choice: Completion) -> TextLogprobs:
        new = len(choice.delta_ids)
        return self._table(index, output).answer((choice.logprobs or [])[-new:] if new else [], choice.delta_ids)

    def _table(self, index: int, output: RequestOutput) -> TextScores:
        table = self._scores.get(index)
        if table is None:
            skip = self._skip
            table = TextScores(self._llm.tokenizer, output, top=self._top or 0, skip_special_tokens=skip)
            self._scores[index] = table
        return table

    def _first(self, writer: EventWriter, index: int, output: RequestOutput, choice: Completion) -> bytes:
        """The prompt goes out with the first token."""
        echoed = _prompt_text(self._llm, output) if self._echo else ""
        text = echoed + ("" if self._hide else choice.delta)
        scores: TextLogprobs | None = None
        if self._top is not None:
            table = self._table(index, output)
            prompt = table.prompt(output, echoed) if self._echo else None
            scores = table.answer([], []) if self._hide else table.answer(choice.logprobs or (), choice.delta_ids)
            scores = scores if prompt is None else joined(prompt, scores)
        finish = "length" if self._hide else choice.finish_reason
        return writer.full(text, scores=scores, finish=finish, stop=choice.stop_reason)
