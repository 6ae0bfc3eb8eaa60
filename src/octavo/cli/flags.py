"""Flags from the fields of msgspec Structs: a field's name, type, default and docstring are all a flag needs.

A command names its positionals and its Structs; `parse` gives the Structs back, filled in. Reading flags this way costs
a millisecond at start, and every mistake is one line: what, got, allowed (docs/decisions, "Flags without a framework").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from octavo.cli.errors import UsageError
from octavo.cli.print_config import config_text
from octavo.cli.rivals import unknown_flag
from octavo.cli.settings import owners, read_settings, settings_file
from octavo.cli.spec import Flag, Spec, flags_of
from octavo.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)


def parse(spec: Spec, argv: list[str]) -> dict[type[msgspec.Struct], Any] | None:
    """Structs by type, filled from `argv`, then from the settings file; None when help or the configuration was asked
    for (and printed)."""
    flags = flags_of(spec)
    taken = {p.name for p in spec.positionals}
    by_text = {f.text: f for f in flags.values() if f.name not in taken}
    values: dict[str, Any] = {}
    loose: list[str] = []
    words = iter(argv)
    for word in words:
        if word in ("-h", "--help"):
            from octavo.cli.help import help_text

            print(help_text(spec, flags), end="")
            return None
        if word == "--":
            loose.extend(words)
        elif word.startswith("-") and word != "-" and not _is_number(word):
            _take_flag(spec, by_text, word, words, values)
        else:
            loose.append(word)
    file = settings_file(values.get("config"))
    settings = read_settings(file, spec, flags)
    _take_positionals(spec, flags, loose, values)
    origins = {**{k: s.origin for k, s in settings.items()}, **dict.fromkeys(values, "command line")}
    values = {**{k: s.value for k, s in settings.items()}, **values}
    if values.pop("print_config", False):
        print(config_text(spec, flags, values, origins, file), end="")
        return None
    _check_positionals(spec, flags, values)
    return {struct: _build(struct, values, origins) for struct in spec.structs}


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()


def _take_flag(spec: Spec, by_text: dict[str, Flag], word: str, words: Iterator[str], values: dict[str, Any]) -> None:
    text, given, value = word.partition("=")
    text = text.replace("_", "-") if text.startswith("--") else text
    negated = by_text.get("--" + text.removeprefix("--no-")) if text.startswith("--no-") else None
    flag = by_text.get(text)
    if flag is None and negated is not None and negated.type is bool and not given:
        values[negated.name] = False
        return
    if flag is None:
        others = owners(text.removeprefix("--").replace("-", "_"))
        raise unknown_flag(word.partition("=")[0], list(by_text), command=spec.command, others=others)
    if flag.type is bool and not given:
        values[flag.name] = True
        return
    if not given:
        following = next(words, None)
        if following is None or (following.startswith("--") and len(following) > 2):
            raise UsageError(f"{flag.text}: got nothing, allowed: {flag.allowed}")
        value = following
    if flag.many:
        values[flag.name] = (*values.get(flag.name, ()), flag.read(value))
    else:
        values[flag.name] = None if flag.optional and value == "None" else flag.read(value)


def _take_positionals(spec: Spec, flags: dict[str, Flag], loose: list[str], values: dict[str, Any]) -> None:
    left = list(loose)
    for p in spec.positionals:
        if p.many and left:
            values[p.name] = tuple(flags[p.name].read(w) for w in left)
            left = []
        elif left:
            values[p.name] = flags[p.name].read(left.pop(0))
    if left:
        many = [f.text for f in flags.values() if f.many and values.get(f.name)]
        advice = f"; repeat {many[0]} before each of its values" if many else ""
        raise UsageError(f"{spec.command}: unexpected argument {left[0]!r}{advice}")


def _check_positionals(spec: Spec, flags: dict[str, Flag], values: dict[str, Any]) -> None:
    for p in spec.positionals:
        if p.required and not values.get(p.name):
            raise UsageError(f"{spec.command}: {p.shown} is missing; see octavo {spec.command} --help")
        if flags[p.name].default is msgspec.NODEFAULT:
            values.setdefault(p.name, "")


def _build(struct: type[S], values: dict[str, Any], origins: dict[str, str]) -> S:
    names = {f.name for f in msgspec.structs.fields(struct)}
    try:
        return struct(**{k: v for k, v in values.items() if k in names})
    except ConfigError as error:
        name = str(error).removeprefix("--").partition(":")[0].replace("-", "_")
        if origins.get(name, "command line") == "command line":
            raise
        raise type(error)(f"{error} (from {origins[name]})") from None
