"""The table of routes against what is served and what the OpenAPI document says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.config.server import ServerConfig
from octavo.server.app import build_app
from octavo.server.routes import ROUTES, Route, Router
from tests.fakes import FakeAsyncLLM
from tests.server.harness import Reply, call, error_of

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [104]},
}
"""A good body of each POST, with a field that only its Struct asks for."""


def asked(route: Route, *, keys: tuple[str, ...] = (), **more: object) -> Reply:
    app = build_app(FakeAsyncLLM(model_names=("m",)), ServerConfig(api_key=keys))
    path = route.path.replace("{model}", "m")
    return call(app, route.method, path, {**BODIES[path], **more} if route.method == "POST" else None)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def document() -> dict[str, Any]:
    found: dict[str, Any] = call(build_app(FakeAsyncLLM(), ServerConfig()), "GET", "/openapi.json").json()
    return found


def test_the_document_has_every_route_and_field() -> None:
    found = document()
    assert {(m, p) for p, methods in found["paths"].items() for m in methods} == {
        (r.method.lower(), r.path) for r in ROUTES
    }
    fields = found["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "temperature", "cache_salt"} <= set(fields)
    assert found["components"]["schemas"]["ChatBody"]["additionalProperties"] is False


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_the_document_says_what_is_served(route: Route) -> None:
    told = document()["paths"][route.path][route.method.lower()]
    reply = asked(route)
    assert reply.status == 200
    content = told["responses"]["200"]["content"]
    assert reply.headers["content-type"].split(";")[0] == next(iter(content))
    assert (asked(route, keys=("secret",)).status == 401) == ("security" in told)
    assert [p["name"] for p in told.get("parameters", ())] == ([] if route.variable is None else [route.variable])
    assert ("requestBody" in told) == (route.method == "POST") == (route.body is not None)
    assert ("schema" in content[route.media]) == (route.reply is not None)


@pytest.mark.parametrize("route", [r for r in ROUTES if r.method == "POST"], ids=name_of)
def test_a_row_has_the_body_and_the_stream_of_its_handler(route: Route) -> None:
    assert route.body is not None
    msgspec.convert(BODIES[route.path], route.body)
    for field in msgspec.structs.fields(route.body):
        refused = asked(route, **{field.name: [[]]})  # of the wrong type in all of them, and known to the handler
        assert error_of(refused, 400)["param"].startswith(field.name), refused.body
    assert "no such field" in error_of(asked(route, no_such_field=1), 400)["message"]
    streamed = asked(route, stream=True)
    assert (streamed.headers["content-type"] == "text/event-stream; charset=utf-8") == route.streams


@pytest.mark.parametrize("route", [r for r in ROUTES if r.reply is not None], ids=name_of)
def test_a_row_has_the_reply_of_its_handler(route: Route) -> None:
    assert route.reply is not None
    reply = asked(route)
    msgspec.json.decode(reply.body, type=route.reply)
    assert set(reply.json()) <= set(route.reply.__struct_fields__)


async def _nothing(*_: object) -> None:
    pass


def test_a_router_finds_exact_paths_before_variable_ones() -> None:
    rows = [Route(method="GET", path=path, handler=_nothing, summary="") for path in ("/a/{x}", "/a/b", "/a")]
    rows.append(Route(method="POST", path="/a/b", handler=_nothing, summary=""))
    router = Router(rows)
    for path in ("/a", "/a/b"):
        assert {r.path for r in router.at(path).values()} == {path}
    assert set(router.at("/a/b")) == {"GET", "POST"}
    for path in ("/a/", "/a/c", "/a/c/d", "/a/b/"):
        assert [r.path for r in router.at(path).values()] == ["/a/{x}"]
    for path in ("", "/", "/ab", "a/b"):
        assert not router.at(path)
    assert [row.variable for row in rows] == ["x", None, None, None]
