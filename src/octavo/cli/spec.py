"""What a command's line may hold: its positionals, and flags made of the fields of msgspec Structs."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, NamedTuple, Union

import msgspec

from octavo.cli.rivals import unknown_value

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class Positional(NamedTuple):
    name: str
    """The field (of any Struct of the command) that it fills."""
    required: bool = True
    many: bool = False
    label: str = ""
    """What help calls it, if not by its name."""

    @property
    def shown(self) -> str:
        return self.label or self.name.upper()


class CommonFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Every command."""

    config: str | None = None
    """A TOML file with options, a section a command. Default: OCTAVO_CONFIG, or config.toml in ~/.config/octavo."""
    print_config: bool = False
    """Print every option with where its value came from, and stop."""


class Spec(NamedTuple):
    """A command's line."""

    command: str
    summary: str
    structs: tuple[type[msgspec.Struct], ...]
    """Its own first. Of a name that several have, the first one's words and type count; all get the value."""
    positionals: tuple[Positional, ...] = ()
    notes: str = ""
    words: tuple[str, ...] = ()
    """What its first word may be where that is no positional (for completion)."""
    without: tuple[str, ...] = ()
    """Fields of its Structs that it does not take."""

    @property
    def all_structs(self) -> tuple[type[msgspec.Struct], ...]:
        """The command's own, then what every command has."""
        return (*self.structs, CommonFlags)


class Flag(NamedTuple):
    name: str
    struct: type[msgspec.Struct]
    type: Any
    optional: bool
    many: bool
    default: Any

    @property
    def text(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[Any, ...] | None:
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else None

    @property
    def allowed(self) -> str:
        if self.choices:
            return " | ".join(map(str, self.choices))
        if self.type is int and self.name.endswith("_bytes"):
            return "a number of bytes, as in 512MiB or 2GiB"
        return {int: "an integer", float: "a number", bool: "true or false"}.get(self.type, "a text")

    @property
    def placeholder(self) -> str:
        if self.choices:
            return "{" + ",".join(map(str, self.choices)) + "}"
        return {int: "INT", float: "NUMBER"}.get(self.type, "TEXT")

    def read(self, text: str) -> Any:
        """One value from the command line; `UsageError` says what, got, allowed."""
        for choice in self.choices or ():
            if text == str(choice):
                return choice
        try:
            if self.choices:
                raise ValueError
            if self.type is int:
                return _size(text) if self.name.endswith("_bytes") else int(text)
            if self.type is float:
                return float(text)
            if self.type is bool:
                return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        except (ValueError, KeyError):
            raise unknown_value(self.text, text, self.allowed) from None
        return text


def _size(text: str) -> int:
    number = text.rstrip("iBbKkMmGgTt")
    unit = text[len(number) :].lower().removesuffix("b")
    return int(float(number) * _UNITS[unit]) if unit else int(number)


def flags_of(spec: Spec) -> dict[str, Flag]:
    """All fields of the command's Structs by name, positionals included, then those every command has."""
    flags: dict[str, Flag] = {}
    for struct in spec.all_structs:
        hints = typing.get_type_hints(struct)
        for field in msgspec.structs.fields(struct):
            if field.name in flags or field.name in spec.without:
                continue
            kind, optional, many = hints[field.name], False, False
            if typing.get_origin(kind) in (Union, types.UnionType):
                inner = [a for a in typing.get_args(kind) if a is not type(None)]
                kind, optional = inner[0], len(inner) < len(typing.get_args(kind))
            if typing.get_origin(kind) is tuple:
                kind, many = typing.get_args(kind)[0], True
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            else:
                default = field.default
            flags[field.name] = Flag(field.name, struct, kind, optional, many, default)
    return flags
