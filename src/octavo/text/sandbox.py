"""Jinja for templates nobody has read: chat templates come with model files.

Jinja's immutable sandbox closes the way to Python's internals. It leaves time and memory open; that is closed here:

    loops, macros, calls      each turn takes one step of a budget and looks at the clock
    + * ** ~ % and filters    results are measured, before they are made where they could be far larger than their parts
    == in, keys, tests        what is compared or looked up is weighed: it takes as long as writing it
    {{ … }}                   what is written is counted

Dialect: trim_blocks, lstrip_blocks, loop controls, {% generation %}, and what octavo.text.dialect lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import FilterArgumentError, SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Joiner
from jinja2.visitor import NodeTransformer

from octavo.text import dialect
from octavo.text.budget import Budget, LimitExceeded, size, weight
from octavo.text.formats import bound_format, percent

MAX_INT_BITS = 4_096


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

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = self._weighed(node.key)
        return node

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
        self.globals.pop("lipsum")
        self.globals.update(
            dict=dialect.TemplateDict(),
            cycler=dialect.cycler,
            joiner=Joiner,
            raise_exception=dialect.raise_exception,
            strftime_now=dialect.strftime_now,
        )
        self._budget: ContextVar[Budget] = ContextVar("budget")
        filters = {name: self.filters[name] for name in dialect.FILTERS} | dialect.FILTERS_OF_OUR_OWN
        self.filters = {name: self._measured(name, function) for name, function in filters.items()}
        self.filters["format"] = self._format
        self.tests.update({name: self._weighing(self.tests[name]) for name in dialect.COMPARING})

    def run(self, render: Callable[[], Iterable[str]]) -> str:
        """Joins the pieces of `render()` under a fresh budget. Raises LimitExceeded."""
        token = self._budget.set(Budget.fresh())
        try:
            return "".join(render())
        finally:
            self._budget.reset(token)

    def guard_step(self, size: int) -> None:
        self._budget.get().step(size)

    def guard_compare(self, value: object) -> object:
        """Comparing nested lists takes as long as writing them. Iterators are read once, here."""
        if isinstance(value, str | bool | None):
            return value
        if isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return self._budget.get().gather(value)
        self._budget.get().charge(weight(value))
        return value

    def guard_concat(self, *parts: object) -> str:
        self._budget.get().charge(sum(map(weight, parts)))
        return "".join(map(dialect.string, parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and (size(left) or size(right)):
            times = right if size(left) else left
            made = max(size(left), size(right)) * (max(times, 0) if isinstance(times, int) else 1)
        elif operator == "%" and isinstance(left, str):
            return percent(self._budget.get(), left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            made = 0
            if left.bit_length() * max(right, 0) > MAX_INT_BITS:
                raise LimitExceeded(f"the chat template made an integer of more than {MAX_INT_BITS} bits")
        else:
            made = size(left) + size(right) if operator == "+" else 0
        self._budget.get().charge(made)
        return self._made(super().call_binop(context, operator, left, right), counted=True)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self._budget.get()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        name = getattr(__obj, "__name__", "")
        kind = next((kind for kind in dialect.METHODS if isinstance(owner, kind)), None)
        if isinstance(owner, dialect.BUILT_IN) if kind is None else name not in dialect.METHODS[kind]:
            raise SecurityError(f"{type(owner).__name__}.{name} is not available in chat templates")
        if isinstance(owner, str):
            if name == "join" and args and not isinstance(args[0], list | tuple):
                args = (budget.gather(iter(args[0])), *args[1:])
            dialect.check_method(owner, name, (*args, *kwargs.values()))
        elif isinstance(owner, list | tuple):
            budget.charge(weight(owner))
        if isinstance(__obj, dialect.TemplateDict) or isinstance(owner, dialect.TemplateDict):
            args = tuple(budget.gather(arg) if isinstance(arg, Iterator) else arg for arg in args)
        if not isinstance(__obj, Macro | LoopContext):
            budget.charge(sum(map(weight, (*args, *kwargs.values()))))
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`format` and `format_map` of texts, however a template came by them, are our own."""
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        wrapped: Callable[..., str] = bound_format(self, self._budget.get, owner, one_mapping=name == "format_map")
        return wrapped

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            self._budget.get().charge(weight(argument))  # nested tuples take as long to look up as to write
        result = super().getitem(obj, argument)
        if isinstance(argument, slice):
            self._budget.get().charge(size(result))
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Instrument().visit(source), *args, **kwargs)

    def _made(self, result: Any, *, counted: bool = False) -> Any:
        """`result`, within the limits. `counted`: charged before."""
        if isinstance(result, int) and result.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"the chat template made an integer of more than {MAX_INT_BITS} bits")
        if not counted:
            self._budget.get().charge(size(result))
        return result

    def _format(self, template: object, *args: Any, **kwargs: Any) -> str:
        """|format."""
        if args and kwargs:
            raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
        return percent(self._budget.get(), dialect.string(template), kwargs or args)

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments are weighed and whose result is charged."""
        whole = name not in dialect.STRUCTURAL
        growth = dialect.GROWTH.get(name, 1)
        # Filters declare by an attribute that they want the context or environment as first argument.
        passes = getattr(function, "jinja_pass_arg", None)
        first = 0 if passes is None else 1

        def measured(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget.get()
            budget.step()
            before, value, rest = args[:first], args[first], args[first + 1 :]
            if whole:
                if isinstance(value, Iterator):
                    value = budget.gather(value)
                budget.charge(growth * sum(map(weight, (value, *rest, *kwargs.values()))))
            dialect.check_filter(name, value, rest, kwargs)
            return self._made(function(*before, value, *rest, **kwargs))

        if passes is not None:
            vars(measured)["jinja_pass_arg"] = passes
        return measured

    def _weighing(self, test: Any) -> Callable[..., bool]:
        """A test (`is …`) whose values are weighed as those of an operator."""

        def weighing(*args: object) -> bool:
            return bool(test(*map(self.guard_compare, args)))

        return weighing

    def _finalizer(self) -> Callable[[Context, object], object]:
        # Asking for the context keeps the compiler from evaluating constants itself.
        @pass_context
        def finalize(context: Context, value: object) -> object:
            self._budget.get().charge(weight(value))
            return dialect.string(value)

        return finalize
