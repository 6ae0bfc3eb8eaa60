"""What chat templates may call: filters, methods and names, as Jinja and transformers give them to published templates.

Left out: what answers differently each time (`random`, `lipsum`), what rewrites HTML (`striptags`, which could join a
control token from its pieces, and `urlize`), and methods that make other types or make texts from tables.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS as JINJA
from jinja2.filters import make_attrgetter
from jinja2.utils import Cycler

from octavo.text.budget import MAX_VALUE, TOO_MUCH, LimitExceeded, size, small, weight

# fmt: off
FILTERS = frozenset((
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "filesizeformat", "first", "float", "forceescape", "groupby", "indent", "int", "items", "join", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
    "select", "selectattr", "slice", "sort", "title", "trim", "unique", "upper", "wordcount", "wordwrap",
    "xmlattr",
))
"""Kept of Jinja's filters as they are; `FILTERS_OF_OUR_OWN` has the others, and the sandbox `format` and `sum`."""
STRUCTURAL = frozenset((
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
))
"""Filters that look at the outside of a value only; the others write or compare the whole of it."""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset((
        "capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "index", "isalnum", "isalpha",
        "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
        "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
        "zfill",
    )),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
}
# fmt: on
"""Methods that may be called, by type."""
BUILT_IN = (bytes, int, float, complex, set, frozenset, range, type)
"""Types none of whose methods may be called."""
WIDTHS = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
SPLITS = frozenset(("split", "rsplit", "splitlines"))
MAX_SPLIT = 4_000_000
SLOW = frozenset(("rfind", "rindex", "rpartition", "rsplit", "lstrip", "rstrip", "strip", "trim"))
"""Methods that may compare each character of a text with each of their argument."""
MAX_PAIRS = 200_000_000
COUNTS = frozenset(("indent", "batch", "slice", "round", "center", "wordwrap"))
"""Filters whose arguments after the first are widths or counts."""
GROWTH = {"urlencode": 12, "xmlattr": 6, "forceescape": 6, "e": 6, "escape": 6}
"""At most how many characters such a filter makes of one."""
LONGEST = {"pprint": 50_000, "wordcount": MAX_SPLIT, "wordwrap": 100_000, "indent": MAX_SPLIT}
"""Characters that filters take which are slow, or make many small pieces."""
# fmt: off
COMPARING = frozenset(
    (
        "in",
        "==",
        "eq",
        "equalto",
        "!=",
        "ne",
        ">",
        "gt",
        "greaterthan",
        ">=",
        "ge",
        "<",
        "lt",
        "lessthan",
        "<=",
        "le",
        "lower",
        "upper",
    )
)
"""Tests (`is …`) that compare or write out the whole of their values."""
STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")
NONCHARACTERS = re.compile("([\ufdd0-\ufdef]+)")
ESCAPED = re.compile(r"\\(?:u(fd[de][0-9a-f])|.)", re.DOTALL)


def unescaped(text: str) -> str:
    """What Python or JSON wrote of a value, with the noncharacters that mark what users wrote (octavo.text.guard) as
    they were: they are taken out of the finished prompt, which their escapes would not be."""
    if "\\ufd" not in text:
        return text
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[0], text)


def check_method(owner: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuses, before it runs, a string method whose result could be far larger than its parts, or that could take far
    longer. Raises LimitExceeded."""
    made = 0
    if name in WIDTHS:
        small(args)
        made = len(owner) + owner.count("\t") * next((n for n in args if isinstance(n, int)), 8)
    elif name in SPLITS and len(owner) > MAX_SPLIT:
        raise LimitExceeded(f"the chat template splits a text of more than {MAX_SPLIT} characters")
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        made = len(owner) + (owner.count(args[0]) if args[0] else len(owner) + 1) * len(args[1])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        made = weight(args[0]) + len(owner) * len(args[0])
    if name in SLOW and len(owner) * max(map(size, args), default=0) > MAX_PAIRS:
        raise LimitExceeded(f"the chat template searches a long text for a long one by {name}")
    if made > MAX_VALUE:
        raise LimitExceeded(TOO_MUCH)


def check_filter(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The same for a filter of `value`, all of it weighed before. Raises LimitExceeded."""
    given = (*args, *kwargs.values())
    if name in COUNTS:
        small(given)
    if name in LONGEST and weight(value) > LONGEST[name]:
        raise LimitExceeded(f"the chat template gives |{name} more than {LONGEST[name]} characters")
    if name == "replace":
        texts = [str(kwargs.get(key, args[at] if at < len(args) else "")) for at, key in enumerate(("old", "new"))]
        check_method(str(value), "replace", tuple(texts))
    elif name == "trim":
        check_method(str(value), "trim", given)
    elif name == "join":
        times = len(value) if isinstance(value, Sized) else 0
        if times * max((len(str(arg)) for arg in given), default=0) > MAX_VALUE:
            raise LimitExceeded(TOO_MUCH)
    elif name == "indent":
        widths = (len(arg) if isinstance(arg, str) else arg for arg in given if isinstance(arg, str | int))
        if len(str(value).splitlines()) * max(widths, default=4) > MAX_VALUE:
            raise LimitExceeded(TOO_MUCH)
    elif name == "wordwrap" and size(value) * max(map(size, given), default=0) > MAX_VALUE:
        raise LimitExceeded(TOO_MUCH)
    elif name == "tojson":
        indent, separators = kwargs.get("indent", args[1] if len(args) > 1 else 0), kwargs.get("separators", args[2:3])
        if (isinstance(indent, int) and weight(value) * indent > MAX_VALUE) or weight(separators) > 100:
            raise LimitExceeded(TOO_MUCH)


@pass_environment
def attribute(environment: Environment, value: object, name: object) -> object:
    """|attr. Raises SecurityError for what is Python's own."""
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"attr: got {str(name)[:40]!r}, allowed: names that begin with no underscore")
    return JINJA["attr"](environment, value, name)


@pass_environment
def truncate(
    environment: Environment,
    text: Any,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> Any:
    """|truncate, whose own checks are assertions."""
    if length < len(end) or (leeway is not None and leeway < 0):
        raise TemplateError(
            f"truncate: got a length of {length}, allowed: at least that of {end!r}, and no leeway below 0"
        )
    return JINJA["truncate"](environment, text, length, killwords, end, leeway)


def urlencode(value: Any) -> str:
    """|urlencode; the noncharacters that mark what users wrote (octavo.text.guard) pass as they are."""
    quote: Callable[[Any], str] = JINJA["urlencode"]
    if not isinstance(value, str):
        return quote(value)
    return "".join(part if NONCHARACTERS.match(part) else quote(part) for part in NONCHARACTERS.split(value))


@pass_environment
def total(environment: Environment, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """|sum: numbers; or lists one after another, which copies none of them twice. Raises LimitExceeded."""
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    if not isinstance(start, list | tuple):
        if not isinstance(start, int | float):
            raise SecurityError(f"sum: got a start of {type(start).__name__}, allowed: a number or a list")
        return sum(values, start)
    joined = list(start)
    for value in values:
        if type(value) is not type(start):
            raise TypeError(f"can only concatenate {type(start).__name__}, not {type(value).__name__}")
        if len(joined) + len(value) > MAX_VALUE:
            raise LimitExceeded(TOO_MUCH)
        joined.extend(value)
    return joined if isinstance(start, list) else tuple(joined)


def string(value: object) -> str:
    """|string."""
    return value if isinstance(value, str) else unescaped(str(value))


def pretty(value: object) -> str:
    """|pprint."""
    pformat: Callable[[object], str] = JINJA["pprint"]
    return unescaped(pformat(value))


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the templates expect it: no HTML or \\u escapes. The order of arguments is transformers'."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise TemplateError(f"tojson: indent: got {indent}, allowed: 0 to 16")
    escape, sort = bool(ensure_ascii), bool(sort_keys)
    return unescaped(json.dumps(value, indent=indent, ensure_ascii=escape, sort_keys=sort, separators=separators))


FILTERS_OF_OUR_OWN: dict[str, Callable[..., Any]] = {
    "attr": attribute,
    "pprint": pretty,
    "string": string,
    "sum": total,
    "tojson": tojson,
    "truncate": truncate,
    "urlencode": urlencode,
}


class TemplateDict:
    """`dict` of a template: makes dictionaries, and has nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def cycler(*items: Any) -> Cycler:
    """Raises TemplateError without items."""
    if not items:
        raise TemplateError("cycler: got no items, allowed: one or more")
    return Cycler(*items)


def raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def strftime_now(pattern: object) -> str:
    text = pattern if isinstance(pattern, str) else ""
    if len(text) > 100 or STRFTIME.fullmatch(text) is None:
        raise SecurityError("strftime_now: got an unusual pattern, allowed: up to 100 characters, no widths")
    return datetime.datetime.now().strftime(text)
