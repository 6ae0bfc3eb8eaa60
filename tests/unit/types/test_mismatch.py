"""What msgspec refuses, in our words."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from octavo.errors import UnsupportedField
from octavo.types.mismatch import UNKNOWN, refusal


class Part(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["text", "code"]
    text: str = ""


class Body(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    one: Part | None = None
    names: tuple[str, ...] = ()
    flags: dict[str, bool] = {}
    free: Any = None
    many: int | list[int | list[float]] = 0


@pytest.mark.parametrize(
    ("value", "param", "says"),
    [
        ([], None, "body: got a list, allowed: an object"),
        ({"parts": {}}, "parts", "got an object, allowed: a list of objects"),
        ({"parts": [{"kind": "text"}, 5]}, "parts[1]", "got 5, allowed: an object"),
        ({"parts": [{"kind": "image"}]}, "parts[0].kind", "got 'image', allowed: 'code' or 'text'"),
        ({"parts": [{"kind": 5}]}, "parts[0].kind", "got 5, allowed: 'code' or 'text'"),
        ({"parts": [{"kind": []}]}, "parts[0].kind", "got a list, allowed: 'code' or 'text'"),
        ({"parts": [{"url": 1, "kind": "image"}]}, "parts[0].kind", "got 'image', allowed: 'code' or 'text'"),
        ({"parts": [{"url": 1, "kind": []}]}, "parts[0].kind", "got a list, allowed: 'code' or 'text'"),
        ({"parts": [{"text": "a"}]}, "parts[0].kind", "required"),
        ({"one": {"kind": "code", "txet": "a"}}, "one.txet", "no such field; did you mean text?"),
        ({"one": {"kind": "code", "text": None}}, "one.text", "got null, allowed: a text"),
        ({"names": ["a", True]}, "names[1]", "got true, allowed: a text"),
        ({"names": "x" * 500}, "names", f"got '{'x' * 80}…', allowed: a list of texts"),
        ({"flags": {"a": 2}}, "flags", "got an integer as a value, allowed: true or false as a value"),
        ({"many": [[1.5, "a"]]}, "many[0][1]", "got 'a', allowed: a number"),
        ({"many": "a"}, "many", "got 'a', allowed: an integer or a list of integers or lists of numbers"),
    ],
)
def test_where_got_and_allowed(value: Any, param: str | None, says: str) -> None:
    raw = msgspec.json.encode(value)
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(raw, type=Body)
    error = refusal(caught.value, Body, value, whole="body")
    assert error.param == param and says in str(error) and str(error).startswith(f"{param or 'body'}: ")
    assert isinstance(error, UnsupportedField) == ("no such field" in says)
    unseen = refusal(caught.value, Body, UNKNOWN, whole="body")
    assert str(unseen).startswith((param or "body").partition("[")[0]), "also without the value"
