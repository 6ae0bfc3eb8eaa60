"""Routes that tell about the server: models, health, metrics, version, the page and the OpenAPI document."""

from __future__ import annotations

import html
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import octavo
from octavo.errors import NotFound
from octavo.obs.metrics import CONTENT_TYPE
from octavo.server.errors import Draining, Loading
from octavo.server.exchange import JSON_TYPE, Exchange
from octavo.server.openai.protocol import ModelCard, ModelList

if TYPE_CHECKING:
    from octavo.server.app import App

MODEL_PREFIX = "/v1/models/"
"""A model's card is at this and its name."""
_PAGE_HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


async def health(app: App, exchange: Exchange) -> None:
    """200 when requests are served; 503 while loading, while draining, and within a second of the engine's death."""
    app.llm.check_health()
    if app.draining:
        raise Draining("draining")
    await exchange.json({"status": "ok"})


async def version(app: App, exchange: Exchange) -> None:
    await exchange.json({"version": octavo.__version__})


async def metrics(app: App, exchange: Exchange) -> None:
    await exchange.reply(200, app.llm.metrics.render(), [(b"content-type", CONTENT_TYPE.encode())])


def _cards(app: App) -> list[ModelCard]:
    llm = app.llm
    defaults = dict(llm.default_sampling)
    return [
        ModelCard(name, app.started, llm.facts.model_name, llm.config.max_model_len, defaults)
        for name in llm.model_names
    ]


async def models(app: App, exchange: Exchange) -> None:
    await exchange.json(ModelList(_cards(app)))


async def model(app: App, exchange: Exchange) -> None:
    name = exchange.path.removeprefix(MODEL_PREFIX)
    cards = _cards(app)
    for card in cards:
        if card.id == name:
            await exchange.json(card)
            return
    raise NotFound(f"model {name[:200]!r} is not served here; served: {', '.join(repr(card.id) for card in cards)}")


async def openapi(app: App, exchange: Exchange) -> None:
    from octavo.server.openapi import document

    await exchange.reply(200, document(app.routes), [JSON_TYPE])


async def page(app: App, exchange: Exchange) -> None:
    """The one static page: the model, its limits, the endpoints, a curl line and a small chat box."""
    text = (Path(__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    try:
        llm = app.llm
        facts = llm.facts
        fill = {
            "MODEL": llm.model_names[0],
            "ARCHITECTURE": facts.architecture,
            "LENGTH": f"{llm.config.max_model_len:,}",
            "STREAMS": f"{llm.config.max_num_seqs:,}",
            "BLOCKS": f"{facts.num_blocks - 1:,} of {facts.block_size} tokens",
            "THREADS": f"{facts.threads} ({facts.isa})" if facts.isa else str(facts.threads),
            "CHAT": "yes" if llm.chat_template is not None else "no",
            "CURL": _curl(app, exchange, llm.model_names[0]),
        }
    except Loading:
        names = ("MODEL", "ARCHITECTURE", "LENGTH", "STREAMS", "BLOCKS", "THREADS", "CHAT", "CURL")
        fill = dict.fromkeys(names, "loading …")
    fill |= {"VERSION": octavo.__version__, "ORIGIN": _origin(app, exchange)}
    for name, value in fill.items():
        text = text.replace(f"{{{{{name}}}}}", html.escape(value, quote=True))
    await exchange.reply(200, text.encode(), _PAGE_HEADERS)


def _origin(app: App, exchange: Exchange) -> str:
    """Where this server listens, not what a Host header claims; the page's script puts in what the browser asked."""
    host, port = exchange.scope.get("server") or (app.config.host, app.config.port)
    if port is None:  # a unix socket
        host = "localhost"
    where = f"[{host}]" if ":" in host else host
    scheme = exchange.scope.get("scheme", "http")
    return f"{scheme}://{where}{'' if port is None else f':{port}'}{app.config.root_path}"


def _curl(app: App, exchange: Exchange, model: str) -> str:
    """A line for a shell that asks this server."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    url = shlex.quote(f"{_origin(app, exchange)}/v1/chat/completions")
    key = ' -H "Authorization: Bearer $KEY"' if app.keys else ""
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {url} -H 'Content-Type: application/json'{key} \\\n  -d {data}"
