"""What `--print-config` prints: every option with where its value came from, as TOML that --config takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.cli.spec import CommonFlags, Flag, Spec

SECRET = "api_key"


def config_text(
    spec: Spec, flags: Mapping[str, Flag], values: Mapping[str, Any], origins: Mapping[str, str], file: Path | None
) -> str:
    """`values`: what was given, by field; `origins`: where. Keys are never printed."""
    over = file or "the file (there is none)"
    lines = [f"# octavo {spec.command}: the command line wins over {over}, that over defaults"]
    lines.append(f"[{spec.command.partition(' ')[0]}]")
    rows = [_row(flag, values) for flag in flags.values() if flag.struct is not CommonFlags]
    width = min(48, max(len(text) for _, text in rows))
    lines += [f"{text:<{width}}  # {origins.get(name, 'default')}" for name, text in rows]
    return "\n".join(lines) + "\n"


def _row(flag: Flag, values: Mapping[str, Any]) -> tuple[str, str]:
    key = flag.name.replace("_", "-")
    value = values.get(flag.name, flag.default)
    if flag.name == SECRET and value:
        return flag.name, f"# {key}: set, not shown"
    if value is None or value is msgspec.NODEFAULT:
        return flag.name, f"# {key}: not set"
    return flag.name, f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)  # TOML's strings, numbers and booleans are written as JSON's
