"""`%` and str.format for chat templates: as Python does them, measured before they run.

A width or precision is a number in the middle of a text: `'%1000000000s' % x` would fill the memory. Here widths end at
10,000, what a value writes is weighed first, and fields of str.format reach what the template itself may reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

from octavo.text.budget import FLOAT, MAX_VALUE, MAX_WIDTH, TOO_MUCH, Budget, LimitExceeded, weight
from octavo.text.dialect import unescaped

FIELD = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?[-#0 +]*(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?[hlL]?(?P<kind>[diouxXeEfFgGcrsa%])"
)
NUMBERS = re.compile(r"\d+")
"""Widths and precisions in a format specification; Python reads the digits of every script."""


def percent(budget: Budget, template: str, values: Any) -> str:
    """`template % values`. Raises SecurityError where it is no plain conversion or too wide, and what Python raises
    where the values do not fit."""
    _plain(template)
    made, end = len(template), 0
    while (start := template.find("%", end)) >= 0:
        found = FIELD.match(template, start)
        if found is None:
            raise SecurityError(
                f"the chat template formats by {template[start : start + 20]!r}, allowed: %s, %-20s, %.2f …"
            )
        end = found.end()
        made += _number(found["width"]) + _number(found["precision"] or "") + FLOAT * (found["kind"] in "diueEfFgG")
        if found["key"] is not None and isinstance(values, Mapping):
            made += weight(values.get(found["key"]))  # one value may be written many times
        budget.step()
        if made > MAX_VALUE:
            raise LimitExceeded(TOO_MUCH)
    budget.charge(made + sum(map(weight, values if isinstance(values, tuple) else (values,))))
    result: str = template % values
    budget.charge(len(result))
    return result if isinstance(values, str) else unescaped(result)


def bound_format(environment: Environment, budget: Callable[[], Budget], template: str, *, one_mapping: bool) -> Any:
    """`template.format`, or `template.format_map` (`one_mapping`), as a template may call it."""

    def formatted(*args: Any, **kwargs: Any) -> str:
        _plain(template)
        formatter = _Formatter(environment, budget())
        if not one_mapping:
            return formatter.vformat(template, args, kwargs)
        if kwargs or len(args) != 1:
            raise TypeError("format_map() takes exactly one argument")
        return formatter.vformat(template, (), args[0])

    return formatted


class _Formatter(SandboxedFormatter):
    """str.format, charging every field. Attributes and items are looked up as the template's own are."""

    def __init__(self, environment: Environment, budget: Budget) -> None:
        super().__init__(environment)
        self._budget, self._made = budget, 0

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        self._budget.charge(len(format_string))
        result = super().vformat(format_string, args, kwargs)
        self._budget.charge(len(result))
        return result

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if re.search(r"[.\[]\s*_", field_name):
            raise SecurityError(
                f"format: got a field {field_name[:40]!r}, allowed: names that begin with no underscore"
            )
        return super().get_field(field_name, args, kwargs)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._take(weight(value) if conversion else 0)
        converted = super().convert_field(value, conversion)
        return unescaped(converted) if conversion else converted

    def format_field(self, value: Any, format_spec: str) -> Any:
        width = sum(map(_number, NUMBERS.findall(format_spec)))
        # Binary digits with an underscore after every four.
        figures = value.bit_length() * 2 if isinstance(value, int) else FLOAT if isinstance(value, float) else 0
        self._take(width + figures + weight(value))
        written = super().format_field(value, format_spec)
        return written if isinstance(value, str) else unescaped(written)

    def _take(self, size: int) -> None:
        self._made += size
        self._budget.step(size)
        if self._made > MAX_VALUE:
            raise LimitExceeded(TOO_MUCH)


def _plain(template: str) -> None:
    if hasattr(template, "__html__"):
        raise SecurityError("a text made by |safe, |e or |escape does not format in chat templates; use ~")


def _number(digits: str) -> int:
    """Raises LimitExceeded for more than a template needs."""
    number = int(digits) if digits and len(digits) <= 9 else 0
    if len(digits) > 9 or number > MAX_WIDTH:
        raise LimitExceeded(f"the chat template asked for a width or count above {MAX_WIDTH}")
    return number
