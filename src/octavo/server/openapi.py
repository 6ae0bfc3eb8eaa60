"""The OpenAPI document, made from the routes and the Structs that decode the requests: it cannot disagree with them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

import octavo
from octavo.server.errors import ErrorBody

if TYPE_CHECKING:
    from octavo.server.routes import Route


@functools.cache
def document(routes: tuple[Route, ...]) -> bytes:
    """OpenAPI 3.1 as JSON."""
    kinds: list[type[msgspec.Struct]] = [ErrorBody]
    for route in routes:
        kinds += [kind for kind in (route.body, route.reply) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
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


def _operation(route: Route, schema_of: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {route.media: {"schema": schema_of[route.reply]} if route.reply else {}}
    if route.streams:
        content["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": "As asked.", "content": content},
            "default": {"description": "What was wrong.", "content": _json(schema_of[ErrorBody])},
        },
    }
    if not route.open:
        operation["security"] = [{"key": []}, {}]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(schema_of[route.body])}
    if (name := route.variable) is not None:
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
