"""Options from a TOML file: a section a command, names those of the flags, [all] for what several commands have.

    [all]
    threads = 4

    [serve]
    model = "llama3.2:1b"
    port = 8080
    kv-cache-memory-bytes = "2GiB"
    api-key = ["one", "two"]

The command line wins over the file, a command's section over [all], the file over defaults.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from octavo.cli.commands import COMMANDS, spec_of
from octavo.cli.errors import UsageError
from octavo.cli.spec import CommonFlags, Flag, Spec, flags_of
from octavo.config.folders import user_config
from octavo.config.rivals import near

ALL = "all"
NAME = "config.toml"


class Setting(NamedTuple):
    value: Any
    origin: str
    """"FILE [section]"."""


def settings_file(given: str | None) -> Path | None:
    """--config, else OCTAVO_CONFIG, else config.toml in the user's folder where there is one."""
    asked = given or os.environ.get("OCTAVO_CONFIG")
    if asked:
        return Path(asked).expanduser()
    usual = user_config() / NAME
    return usual if usual.is_file() else None


def read_settings(path: Path | None, spec: Spec, flags: Mapping[str, Flag]) -> dict[str, Setting]:
    """What the file says for the command of `spec`, by field. Raises UsageError that names file, section and key."""
    if path is None:
        return {}
    sections = _sections(path)
    found: dict[str, Setting] = {}
    own = spec.command.partition(" ")[0]
    for section in (ALL, own):
        for key, value in sections.get(section, {}).items():
            where = f"{path} [{section}]"
            name = key.replace("-", "_")
            if name in flags and flags[name].struct is not CommonFlags:
                found[name] = Setting(_checked(flags[name], value, where=f"{where} {key}"), where)
            else:
                known = _others(spec) if section == own else _everything()
                if name not in known:
                    raise _unknown(key, list({**flags, **known}), where, owners(name))
    return found


def _sections(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not TOML: {error}") from None
    for section, body in tree.items():
        allowed = [ALL, *COMMANDS]
        if section not in allowed or not isinstance(body, dict):
            close = near(section, allowed)
            hint = f"did you mean [{close}]?" if close else f"allowed: [{'], ['.join(allowed)}]"
            what = f"got the section [{section}]" if isinstance(body, dict) else f"got {section!r} outside a section"
            raise UsageError(f"{path}: {what}; {hint}")
    return tree


def _others(spec: Spec) -> dict[str, Flag]:
    """The flags of a command's other forms (bench serve, bench kernels), which share its section."""
    name, _, form = spec.command.partition(" ")
    return flags_of(spec_of(name)) if form else {}


def _everything() -> dict[str, Flag]:
    """The flags of all commands by name: [all] may hold any of them."""
    return {name: flag for command in COMMANDS for name, flag in flags_of(spec_of(command)).items()}


def owners(name: str) -> list[str]:
    """The commands that take the option of that field."""
    return [command for command in COMMANDS if name in flags_of(spec_of(command))]


def _unknown(key: str, known: list[str], where: str, others: list[str]) -> UsageError:
    names = [name.replace("_", "-") for name in known]
    close = near(key.replace("_", "-"), names)
    hint = f"did you mean {close}?" if close else f"allowed: {', '.join(names)}"
    hint = f"it is an option of octavo {', '.join(others)}" if others else hint
    return UsageError(f"{where}: unknown key {key!r}; {hint}")


def _checked(flag: Flag, value: Any, *, where: str) -> Any:
    """The value as the Struct's field wants it; its range is checked by the Struct."""
    if flag.many:
        items = value if isinstance(value, list) else [value]
        return tuple(_one(flag, item, where=where) for item in items)
    return _one(flag, value, where=where)


def _one(flag: Flag, value: Any, *, where: str) -> Any:
    kind = type(value)
    if flag.choices:
        if any(value == choice and kind is type(choice) for choice in flag.choices):
            return value
    elif kind is flag.type:
        return value
    elif flag.type is float and kind is int:
        return float(value)
    elif flag.type is int and kind is str and flag.name.endswith("_bytes"):
        try:
            return flag.read(value)
        except UsageError:
            pass
    raise UsageError(f"{where}: got {value!r}, allowed: {flag.allowed}")
