"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
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

INLINE_CHARS = 4096
"""Longer text is tokenised on a thread, so that nobody else waits for it (R16)."""


async def tokenize(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    body = decode(exchange.data, TokenizeBody)
    check_model(body.model, llm.model_names)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        ids = await render(
            llm,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            kwargs=body.chat_template_kwargs,
            max_messages=app.config.max_messages,
        )
    else:
        text = body.prompt or ""
        add_bos = None if body.add_special_tokens else False
        if len(text) <= INLINE_CHARS:
            ids = llm.tokenizer.encode(text, add_bos=add_bos)
        else:
            ids = await asyncio.to_thread(llm.tokenizer.encode, text, add_bos=add_bos)
    strings = [token_str(llm.tokenizer, token)[0] for token in ids] if body.return_token_strs else None
    await exchange.json(TokenizeReply(len(ids), llm.config.max_model_len, ids, strings))


async def detokenize(app: App, exchange: Exchange) -> None:
    llm = app.ready()
    body = decode(exchange.data, DetokenizeBody)
    check_model(body.model, llm.model_names)
    if not body.tokens:
        await exchange.json(DetokenizeReply(""))
        return
    check_ids("tokens", body.tokens, llm.facts.vocab_size)
    await exchange.json(DetokenizeReply(llm.tokenizer.decode(body.tokens, skip_special_tokens=False)))
