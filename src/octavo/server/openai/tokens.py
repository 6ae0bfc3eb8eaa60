"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import InvalidRequest
from octavo.server.decode import decode
from octavo.server.exchange import Exchange
from octavo.server.openai.chat import render
from octavo.server.openai.logprobs import token_str
from octavo.server.openai.params import check_ids, check_model
from octavo.server.openai.protocol import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply

if TYPE_CHECKING:
    from octavo.server.app import App

INLINE = 4096
"""More characters or tokens than these are worked on by a thread, so that nobody else waits (R16)."""


async def tokenize(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    body = decode(exchange.data, TokenizeBody)
    check_model(body.model, llm.model_names)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt: give either prompt or messages", param="prompt")
    text, limit, wants = body.prompt or "", llm.config.max_model_len, body.return_token_strs
    ids: list[int] | None = None
    if body.messages is not None:
        ids = await render(llm, body, body.messages, max_messages=app.config.max_messages)

    def build() -> TokenizeReply:
        add_bos = None if body.add_special_tokens else False
        tokens = llm.tokenizer.encode(text, add_bos=add_bos) if ids is None else ids
        strings = [token_str(llm.tokenizer, token)[0] for token in tokens] if wants else None
        return TokenizeReply(len(tokens), limit, tokens, strings)

    await exchange.json_of(build, heavy=len(text) > INLINE or len(ids or ()) > INLINE)


async def detokenize(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    body = decode(exchange.data, DetokenizeBody)
    check_model(body.model, llm.model_names)
    if body.tokens:
        check_ids("tokens", body.tokens, llm.facts.vocab_size)
    await exchange.json_of(
        lambda: DetokenizeReply(llm.tokenizer.decode(body.tokens, skip_special_tokens=False)),
        heavy=len(body.tokens) > INLINE,
    )
