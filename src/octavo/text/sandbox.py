"""Jinja for templates nobody has read: chat templates come with model files.

Jinja's immutable sandbox closes the way to Python's internals. It leaves time and memory open; that is closed here:

    loops, macros, calls      each turn takes one step of a budget and looks at the clock
    + * ** ~ % and filters    results are measured, before they are made where they could be far larger than their parts
    {{ … }}                   what is written is counted

Dialect: trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson, raise_exception, strftime_now, as in the
templates published with models.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 2.0
MAX_STEPS = 500_000
MAX_VALUE = 16_000_000
"""Characters (or items) of one value."""
MAX_TOTAL = 256_000_000
"""Characters and items of all values one rendering makes."""
MAX_INT_BITS = 4_096
MAX_PARTS = 500_000
"""Members of one value, with theirs."""
TOO_MUCH = "the chat template made more text than any conversation needs"

# fmt: off
FILTERS = frozenset((
    "abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title",
    "tojson", "trim", "unique", "upper",
))
# fmt: on
"""Kept of Jinja's filters; the others format to a width, reach into objects, or are random."""
# fmt: off
STRUCTURAL = frozenset((
    "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr",
    "reverse", "select", "selectattr", "slice",
))
"""Filters that look at the outside of a value only; the others write or compare the whole of it."""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset((
        "capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal",
        "isdigit", "islower", "isspace", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
        "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
    )),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
}
# fmt: on
"""Methods that may be called, by type."""
BUILT_IN = (bytes, int, float, complex, set, frozenset, range, type)
"""Types none of whose methods may be called."""
WIDTHS = frozenset(("center", "ljust", "rjust", "zfill"))
SPLITS = frozenset(("split", "rsplit", "splitlines"))
MAX_SPLIT = 4_000_000
STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")


class LimitExceeded(SecurityError):
    """A template took more time, steps or memory than any conversation needs."""


@dataclass(slots=True, eq=False)
class _Budget:
    deadline: float
    steps: int = 0
    total: int = 0

    def step(self, size: int = 0) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitExceeded(f"the chat template took more than {MAX_STEPS} steps")
        if time.monotonic() > self.deadline:
            raise LimitExceeded(f"the chat template ran longer than {MAX_SECONDS:g} s")
        self.charge(size)

    def charge(self, size: int) -> None:
        self.total += size
        if size > MAX_VALUE or self.total > MAX_TOTAL:
            raise LimitExceeded(TOO_MUCH)


class _Scale:
    """Weighs one value: about how many characters it has when written out, as far as the limits."""

    def __init__(self) -> None:
        self.parts = 0

    def weigh(self, value: object, *, depth: int = 0) -> int:
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, Mapping):
            inside: Iterable[object] = chain.from_iterable(value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            inside = value
        else:
            return 16
        if depth > 64:
            raise LimitExceeded("the chat template nests values more than 64 deep")
        total = 2
        for part in inside:
            self.parts += 1
            total += 2 + self.weigh(part, depth=depth + 1)
            # A list that holds one list twice, that holds one list twice, …, is small and writes out without end.
            if total > MAX_VALUE or self.parts > MAX_PARTS:
                raise LimitExceeded(TOO_MUCH)
        return total


def _weight(value: object) -> int:
    return len(value) if isinstance(value, str) else _Scale().weigh(value)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple | bytes) else 0


class Generation(Extension):
    """{% generation %} … {% endgeneration %} marks what the assistant says, for training; it changes nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrument(NodeTransformer):
    """Puts a step at the head of every loop and macro body and routes `~` through a measured concatenation."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._body(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._weighed(node.expr)
        for operand in node.ops:
            operand.expr = self._weighed(operand.expr)
        return node

    def _weighed(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else _call("guard_compare", [node], node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("guard_concat", node.nodes, node.lineno)

    def _body(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        written = sum(len(data.data) for child in node.body for data in child.find_all(nodes.TemplateData))
        tick = _call("guard_step", [nodes.Const(written, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        same: nodes.Node = node
        return same


def _call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
    """A call of a method of the environment, which a template can neither see nor replace."""
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=lineno), args, [], None, None, lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. Compiled templates may be rendered by several threads at once."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # folding constants would compute at compile time, outside any budget
            cache_size=0,
            extensions=[LoopControlExtension, Generation],
            finalize=self._finalizer(),
        )
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name)
        self._budget: ContextVar[_Budget] = ContextVar("budget")
        self.filters = {name: self._measured(name, self.filters[name]) for name in FILTERS if name in self.filters}
        self.filters["tojson"] = self._measured("tojson", _tojson)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def run(self, render: Callable[[], Iterable[str]]) -> str:
        """Joins the pieces of `render()` under a fresh budget. Raises LimitExceeded."""
        token = self._budget.set(_Budget(deadline=time.monotonic() + MAX_SECONDS))
        try:
            return "".join(render())
        finally:
            self._budget.reset(token)

    def guard_step(self, size: int) -> None:
        self._budget.get().step(size)

    def guard_compare(self, value: object) -> object:
        """Comparing nested lists takes as long as writing them."""
        if isinstance(value, list | tuple | Mapping):
            self._budget.get().charge(_weight(value))
        return value

    def guard_concat(self, *parts: object) -> str:
        self._budget.get().charge(sum(_weight(part) for part in parts))
        return "".join(map(str, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and (_size(left) or _size(right)):
            times = right if _size(left) else left
            size = max(_size(left), _size(right)) * (max(times, 0) if isinstance(times, int) else 1)
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("the % operator does not format text in chat templates; use ~")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            size = 0
            if left.bit_length() * max(right, 0) > MAX_INT_BITS:
                raise LimitExceeded(f"the chat template made an integer of more than {MAX_INT_BITS} bits")
        else:
            size = _size(left) + _size(right) if operator == "+" else 0
        self._budget.get().charge(size)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"the chat template made an integer of more than {MAX_INT_BITS} bits")
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self._budget.get()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        if name in ("format", "format_map"):
            raise SecurityError("str.format is not available in chat templates; use ~")
        kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
        if isinstance(owner, BUILT_IN) if kind is None else name not in METHODS[kind]:
            raise SecurityError(f"{type(owner).__name__}.{name} is not available in chat templates")
        if isinstance(owner, str):
            _check_method(owner, name, (*args, *kwargs.values()))
        elif isinstance(owner, list | tuple):
            budget.charge(_weight(owner))
        result = super().call(__context, __obj, *args, **kwargs)
        budget.charge(_size(result))
        return result

    def getitem(self, obj: Any, argument: Any) -> Any:
        result = super().getitem(obj, argument)
        if isinstance(argument, slice):
            self._budget.get().charge(_size(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Instrument().visit(source), *args, **kwargs)

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments are weighed and whose result is charged."""
        whole = name not in STRUCTURAL

        # Filters declare by an attribute that they want the context or environment as first argument.
        def measured(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            budget.step()
            if whole:
                budget.charge(sum(_weight(arg) for arg in args if isinstance(arg, str | list | tuple | Mapping)))
            texts = [arg for arg in args if isinstance(arg, str)]
            if name == "replace" and len(texts) >= 3:
                _check_method(texts[0], "replace", tuple(texts[1:]))
            elif name == "join" and len(texts) > 0:
                budget.charge(len(texts[-1]) * max(map(_size, args)))
            elif name in ("indent", "batch", "slice", "round"):
                _small((*args[1:], *kwargs.values()))
            elif name == "sum" and not all(
                isinstance(start, int | float) for start in (*args[3:], kwargs.get("start", 0))
            ):
                raise SecurityError("sum adds numbers only in chat templates")
            result = function(*args, **kwargs)
            budget.charge(_size(result))
            return result

        if hasattr(function, "jinja_pass_arg"):
            vars(measured)["jinja_pass_arg"] = function.jinja_pass_arg
        return measured

    def _finalizer(self) -> Callable[[Context, object], object]:
        # Asking for the context keeps the compiler from evaluating constants itself.
        @pass_context
        def finalize(context: Context, value: object) -> object:
            self._budget.get().charge(_weight(value))
            return value

        return finalize


def _check_method(owner: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuses, before it runs, a string method whose result could be far larger than its parts."""
    size = 0
    if name in WIDTHS:
        _small(args)
    elif name in SPLITS and len(owner) > MAX_SPLIT:
        raise LimitExceeded(f"the chat template splits a text of more than {MAX_SPLIT} characters")
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        size = len(owner) + (owner.count(args[0]) if args[0] else len(owner) + 1) * len(args[1])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        size = _weight(args[0]) + len(owner) * len(args[0])
    if size > MAX_VALUE:
        raise LimitExceeded(TOO_MUCH)


def _small(numbers: Iterable[object]) -> None:
    if any(isinstance(number, int) and abs(number) > 10_000 for number in numbers):
        raise LimitExceeded("the chat template asked for a width or count above 10000")


def _tojson(
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
    return json.dumps(value, indent=indent, ensure_ascii=escape, sort_keys=sort, separators=separators)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: object) -> str:
    text = str(pattern)
    if len(text) > 100 or STRFTIME.fullmatch(text) is None:
        raise SecurityError("strftime_now: got an unusual pattern, allowed: up to 100 characters, no widths")
    return datetime.datetime.now().strftime(text)
