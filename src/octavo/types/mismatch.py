"""What msgspec refuses, in the house form: where, got, allowed. Off the fast path: only a refusal comes here."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from octavo.errors import InvalidRequest, UnsupportedField, did_you_mean

Node = TypeVar("Node", bound=inspect.Type)

UNKNOWN: Any = object()
"""A value that nobody could look up."""
MAX_SHOWN = 80
"""Characters of a text that a message repeats."""

_AT = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`", re.DOTALL)
_GOT = re.compile(r"got `(?P<kind>\w+)`")

_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a text",
}
"""msgspec's words for what it got -> ours."""

_WORDS: list[tuple[type[inspect.Type], str, str]] = [
    (inspect.AnyType, "any value", "values"),
    (inspect.BoolType, "true or false", "booleans"),
    (inspect.DictType, "an object", "objects"),
    (inspect.FloatType, "a number", "numbers"),
    (inspect.IntType, "an integer", "integers"),
    (inspect.NoneType, "null", "nulls"),
    (inspect.StrType, "a text", "texts"),
    (inspect.StructType, "an object", "objects"),
]


class Place(NamedTuple):
    """Where an error is: `where` as callers write it ("messages[0].role"; empty: the whole), the type that is asked for
    there (None: unknown) and the value that is there (or UNKNOWN). `part`: which part of an object,
    where not the whole."""

    where: str
    asked: inspect.Type | None
    value: Any
    part: str = ""


def refusal(error: msgspec.ValidationError, kind: type, value: Any, *, whole: str) -> InvalidRequest:
    """The error to raise instead. `kind`: what was decoded, `value`: the same input decoded freely, or UNKNOWN;
    `whole`: what to call it where the error is in no field."""
    text, place = str(error), locate(error, kind, value)
    if unknown := _UNKNOWN.search(text):
        return _wrong_kind(place) or _no_such_field(place, unknown["name"])
    if missing := _MISSING.search(text):
        where = _join(place.where, missing["name"])
        return InvalidRequest(f"{where}: required", param=where)
    got = _shown(place.value) if place.value is not UNKNOWN else ""
    if not got and (named := _GOT.search(text)):
        got = _KINDS.get(named["kind"], named["kind"])
    beyond = "out of range" in text
    got = "a number beyond 64 bits" if beyond else got
    allowed = (_words(place.asked)[0] if place.asked else "another value") + (" of 64 bits" if beyond else "")
    told = f"got {got}{place.part}, allowed: {allowed}{place.part}" if got else f"allowed: {allowed}"
    return InvalidRequest(f"{place.where or whole}: {told}", param=place.where or None)


def locate(error: msgspec.ValidationError, kind: type, value: Any) -> Place:
    """Follows the path that msgspec gives, through the type and the value."""
    at = _AT.search(str(error))
    asked: inspect.Type | None = _info(kind)
    where, part = "", ""
    for step in _STEP.finditer(at["path"] if at else ""):
        if step["name"] is not None:
            where = _join(where, step["name"])
        elif step["index"] != "...":
            where += f"[{step['index']}]"
        else:
            part = " as a value"
        asked, value = _into(asked, value, step["name"], step["index"])
    if at and at["key"]:
        found = _one_of(asked, inspect.DictType)
        return Place(where, found.key_type if found else None, UNKNOWN, " as a key")
    return Place(where, asked, value, part)


@functools.lru_cache
def _info(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _into(
    asked: inspect.Type | None, value: Any, name: str | None, index: str | None
) -> tuple[inspect.Type | None, Any]:
    """One step down: a field, an item, or ("...") some value of an object."""
    if name is not None:
        struct = _one_of(asked, inspect.StructType)
        fields = {field.encode_name: field.type for field in struct.fields} if struct else {}
        return fields.get(name), value.get(name, UNKNOWN) if isinstance(value, dict) else UNKNOWN
    if index == "...":
        table = _one_of(asked, inspect.DictType)
        return table.value_type if table else None, UNKNOWN
    row, at = _one_of(asked, inspect.ListType) or _one_of(asked, inspect.VarTupleType), int(index or 0)
    return row.item_type if row else None, value[at] if isinstance(value, list) and at < len(value) else UNKNOWN


def _one_of(asked: inspect.Type | None, kind: type[Node]) -> Node | None:
    options = asked.types if isinstance(asked, inspect.UnionType) else (asked,)
    return next((option for option in options if isinstance(option, kind)), None)


def _wrong_kind(place: Place) -> InvalidRequest | None:
    """An object whose field says that it is another kind of object has other fields too: that field is the error."""
    struct = _one_of(place.asked, inspect.StructType)
    for field in struct.fields if struct and isinstance(place.value, dict) else ():
        given = place.value.get(field.encode_name, UNKNOWN)
        if isinstance(field.type, inspect.LiteralType) and given is not UNKNOWN and given not in field.type.values:
            where = _join(place.where, field.encode_name)
            return InvalidRequest(f"{where}: got {_shown(given)}, allowed: {_words(field.type)[0]}", param=where)
    return None


def _no_such_field(place: Place, name: str) -> UnsupportedField:
    struct = _one_of(place.asked, inspect.StructType)
    known = [field.encode_name for field in struct.fields] if struct else []
    where = _join(place.where, name)
    return UnsupportedField(f"{where}: no such field{did_you_mean(name[:64], known)}", param=where)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    """As its writer would know it again, at a bounded length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "…")
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "a number beyond 64 bits"
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else "a number beyond 64 bits"
    return "a list" if isinstance(value, list | tuple) else "an object"


def _words(asked: inspect.Type) -> tuple[str, str]:
    """What is allowed, as one and as many. null is left out beside another: it asks for the default everywhere."""
    if isinstance(asked, inspect.UnionType):
        options = [option for option in asked.types if not isinstance(option, inspect.NoneType)]
        one, many = zip(*map(_words, options), strict=True)
        return _either(one), _either(many)
    if isinstance(asked, inspect.LiteralType):
        names = _either(map(repr, asked.values))
        return names, names
    if isinstance(asked, inspect.ListType | inspect.VarTupleType):
        if asked.max_length == 0:
            return "an empty list", "empty lists"
        items = _words(asked.item_type)[1]
        return f"a list of {items}", f"lists of {items}"
    return next(((one, many) for kind, one, many in _WORDS if isinstance(asked, kind)), ("another value", "values"))


def _either(words: Iterable[str]) -> str:
    *head, last = dict.fromkeys(words)
    return f"{', '.join(head)} or {last}" if head else last
