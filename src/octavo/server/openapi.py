"""The OpenAPI document, made from the Structs that decode the requests, so that it cannot disagree with them."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

import octavo
from octavo.server.errors import ErrorBody
from octavo.server.openai import protocol as p

_ROUTES: list[tuple[str, str, str, type[msgspec.Struct] | None, type[msgspec.Struct] | None, str]] = [
    ("post", "/v1/completions", "Continue a prompt.", p.CompletionBody, p.CompletionReply, "application/json"),
    ("post", "/v1/chat/completions", "Answer a conversation.", p.ChatBody, p.ChatReply, "application/json"),
    ("get", "/v1/models", "The models served here.", None, p.ModelList, "application/json"),
    ("get", "/v1/models/{model}", "One of them.", None, p.ModelCard, "application/json"),
    ("post", "/tokenize", "Text or messages to token ids.", p.TokenizeBody, p.TokenizeReply, "application/json"),
    ("post", "/detokenize", "Token ids to text.", p.DetokenizeBody, p.DetokenizeReply, "application/json"),
    ("get", "/health", "200 when requests are served. Needs no key.", None, None, "application/json"),
    ("get", "/ping", "As /health. Needs no key.", None, None, "application/json"),
    ("get", "/metrics", "Prometheus metrics.", None, None, "text/plain"),
    ("get", "/version", "The server's version.", None, None, "application/json"),
    ("get", "/openapi.json", "This document.", None, None, "application/json"),
    ("get", "/", "A page for people.", None, None, "text/html"),
]


@functools.cache
def document() -> bytes:
    """OpenAPI 3.1 as JSON."""
    kinds: list[type[msgspec.Struct]] = [ErrorBody]
    for _, _, _, body, reply, _ in _ROUTES:
        kinds += [kind for kind in (body, reply) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, body, reply, media in _ROUTES:
        paths.setdefault(path, {})[method] = _operation(
            path,
            summary,
            media,
            body=body and schema_of[body],
            reply=reply and schema_of[reply],
            error=schema_of[ErrorBody],
        )
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Octavo", "version": octavo.__version__},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(path: str, summary: str, media: str, *, body: Any, reply: Any, error: Any) -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": reply} if reply else {}}
    if path.endswith("completions"):
        content["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "As asked.", "content": content},
            "default": {"description": "What was wrong.", "content": {"application/json": {"schema": error}}},
        },
    }
    if path not in ("/health", "/ping"):
        operation["security"] = [{"key": []}, {}]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if "{model}" in path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
