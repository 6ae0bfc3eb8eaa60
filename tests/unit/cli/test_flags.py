"""Flags from Structs: every type, both spellings, repeated values, sizes, positionals."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from octavo.cli.errors import UsageError
from octavo.cli.flags import parse
from octavo.cli.help import field_docs
from octavo.cli.spec import Positional, Spec
from octavo.config.args import EngineArgs
from octavo.config.server import ServerConfig


class Some(msgspec.Struct, frozen=True, kw_only=True):
    """Some options."""

    model: str
    """The model."""
    files: tuple[str, ...] = ()
    """Files."""
    level: Literal["low", "high"] = "low"
    """How much,
    over two lines."""
    width: Literal[8, 16] = 8
    count: int | None = None
    """How many."""
    cache_bytes: int = 0
    """Size."""
    rate: float = 1.0
    """How fast."""
    on: bool = True
    """Switch it."""
    off: bool = False
    """Another."""
    name: tuple[str, ...] = ()
    """Names."""


SPEC = Spec("some", "Does some.", (Some,), (Positional("model"), Positional("files", required=False, many=True)))


def read(*words: str) -> Some:
    parsed = parse(SPEC, list(words))
    assert parsed is not None
    found = parsed[Some]
    assert isinstance(found, Some)
    return found


def test_defaults() -> None:
    assert read("m") == Some(model="m")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--level", "high"], {"level": "high"}),
        (["--level=high"], {"level": "high"}),
        (["--width", "16"], {"width": 16}),
        (["--count", "3"], {"count": 3}),
        (["--count", "-3"], {"count": -3}),
        (["--count", "None"], {"count": None}),
        (["--cache-bytes", "2GiB"], {"cache_bytes": 2 << 30}),
        (["--cache_bytes", "1.5k"], {"cache_bytes": 1500}),
        (["--cache-bytes", "512MB"], {"cache_bytes": 512_000_000}),
        (["--cache-bytes", "77"], {"cache_bytes": 77}),
        (["--rate", "0.5"], {"rate": 0.5}),
        (["--no-on"], {"on": False}),
        (["--on=false"], {"on": False}),
        (["--off"], {"off": True}),
        (["--name", "a", "--name=b"], {"name": ("a", "b")}),
        (["f", "--off", "g"], {"files": ("f", "g"), "off": True}),
        (["--", "--odd"], {"files": ("--odd",)}),
        (["-"], {"files": ("-",)}),
    ],
)
def test_values(words: list[str], expected: dict[str, Any]) -> None:
    assert read("m", *words) == Some(model="m", **expected)


@pytest.mark.parametrize(
    "words",
    [
        ["--level", "middle"],
        ["--width", "9"],
        ["--count", "x"],
        ["--count"],
        ["--count", "--off"],
        ["--cache-bytes", "much"],
        ["--cache-bytes", "3x"],
        ["--rate", "fast"],
        ["--on=perhaps"],
        ["--no-count"],
        ["--no-off=true"],
        ["-x"],
    ],
)
def test_mistakes(words: list[str]) -> None:
    with pytest.raises(UsageError):
        read("m", *words)


def test_help_shows_docstrings_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(SPEC, ["--help"]) is None
    text = capsys.readouterr().out
    assert "usage: octavo some MODEL [FILES...] [options]" in text
    assert "How much, over two lines. (default: low)" in text
    assert "--no-on" in text and "Do not switch it." in text
    assert "--off" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("struct", [EngineArgs, ServerConfig])
def test_every_field_is_documented(struct: type[msgspec.Struct]) -> None:
    assert set(field_docs(struct)) == {f.name for f in msgspec.structs.fields(struct)}
