"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest
from octavo.server.decode import check_free_form, decode
from octavo.server.exchange import Exchange
from octavo.server.openai.answer import Job
from octavo.server.openai.logprobs import HEAVY_SCORES, chat_scores, prompt_scores
from octavo.server.openai.params import (
    chat_params,
    check_model,
    check_priority,
    checked_tools,
    plain_messages,
)
from octavo.server.openai.protocol import (
    ChatBody,
    ChatChoice,
    ChatLogprobs,
    ChatMessage,
    ChatReply,
    ReplyMessage,
    TokenizeBody,
)
from octavo.server.openai.sse import EventWriter, StreamHead
from octavo.server.ports import LLMPort
from octavo.types import Completion, RequestOutput

if TYPE_CHECKING:
    from octavo.server.app import App


async def chat_completions(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    config = app.config
    body = decode(exchange.data, ChatBody)
    model = check_model(body.model, llm.model_names)
    check_priority(body.priority, llm.config.scheduler.policy)
    params = chat_params(body, llm.default_sampling)
    if params.n > config.max_streams:
        raise InvalidRequest.field("n", params.n, f"at most {config.max_streams}")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs: allowed only without stream", param="prompt_logprobs")
    ids = await render(llm, body, body.messages, max_messages=config.max_messages)
    id = f"chatcmpl-{exchange.request_id}"
    salt = app.salt(exchange, body.cache_salt)
    job = Job(llm, exchange, prompts=[ids], params=params, id=id, priority=body.priority, salt=salt)
    top = (body.top_logprobs or 0) if body.logprobs else None
    if body.stream:
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        head = StreamHead("chat", id=id, created=int(time.time()), model=model, usage=wants_usage)
        await job.stream(head, ChatEvents(llm, head, top))
        return
    [output] = await job.whole()
    created = int(time.time())

    def build() -> ChatReply:
        choices = [_choice(llm, choice, top) for choice in output.outputs]
        reply = ChatReply(id, created, model, choices, job.usage([output]))
        if body.prompt_logprobs is not None:
            reply.prompt_logprobs = prompt_scores(llm.tokenizer, output.prompt_logprobs)
        return reply

    await exchange.json_of(build, heavy=len(output.prompt_logprobs or ()) > HEAVY_SCORES)


async def render(
    llm: LLMPort, body: ChatBody | TokenizeBody, messages: Sequence[ChatMessage], *, max_messages: int
) -> list[int]:
    """Token ids of a conversation. Raises: InvalidRequest, also for a model without a chat template."""
    if llm.chat_template is None:
        raise InvalidRequest(
            "messages: this model has no chat template; use /v1/completions, or start with --chat-template FILE",
            param="messages",
        )
    plain = plain_messages(messages, max_messages)
    tools = checked_tools(body.tools, getattr(body, "tool_choice", None))
    check_free_form("chat_template_kwargs", body.chat_template_kwargs)
    goes_on, opens = body.continue_final_message, body.add_generation_prompt
    opens = not goes_on if opens is None else opens
    return await llm.render_chat_async(
        plain,
        add_generation_prompt=opens,
        continue_final_message=goes_on,
        tools=tools,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _choice(llm: LLMPort, choice: Completion, top: int | None) -> ChatChoice:
    scores = None if top is None else chat_scores(llm.tokenizer, choice.logprobs or (), top=top)
    return ChatChoice(choice.index, ReplyMessage(choice.text), scores, choice.finish_reason, choice.stop_reason)


class ChatEvents:
    """Events of a chat stream. The role travels with the first token: nothing is sent before there is one."""

    def __init__(self, llm: LLMPort, head: StreamHead, top: int | None) -> None:
        self._llm = llm
        self._head = head
        self._top = top
        self._writers: dict[int, EventWriter] = {}

    def __call__(self, place: int, output: RequestOutput, /) -> bytes:
        if len(output.outputs) == 1:
            return self._event(output.outputs[0])
        return b"".join([self._event(choice) for choice in output.outputs])

    def _event(self, choice: Completion) -> bytes:
        finish = choice.finish_reason
        writer = self._writers.get(choice.index)
        if writer is None:
            if not choice.delta_ids and finish is None:
                return b""
            writer = self._writers[choice.index] = EventWriter(self._head, choice.index)
        elif writer.finished or not (choice.delta_ids or finish):
            return b""
        if finish is None and self._top is None:
            return writer.event(choice.delta)
        return writer.full(
            choice.delta,
            scores=self._scores(choice),
            finish=finish,
            stop=choice.stop_reason,
        )

    def _scores(self, choice: Completion) -> ChatLogprobs | None:
        if self._top is None:
            return None
        new = len(choice.delta_ids)
        entries = (choice.logprobs or [])[-new:] if new else []
        return chat_scores(self._llm.tokenizer, entries, top=self._top)
