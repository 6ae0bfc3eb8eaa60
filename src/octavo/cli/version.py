"""`octavo version`: what to put in a bug report."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform

import msgspec

from octavo import __version__
from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Spec
from octavo.errors import OctavoError
from octavo.kernels.machine import cpu_name

PACKAGES = ("numpy", "msgspec", "starlette", "uvicorn", "tokenizers", "pyzmq", "jinja2", "huggingface-hub")


class VersionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    json: bool = False
    """As one JSON object."""


SPEC = Spec("version", "Print versions, CPU, instruction set and threads.", (VersionFlags,))


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    found = facts()
    if parsed[VersionFlags].json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        width = max(map(len, found))
        for name, value in found.items():
            print(f"{name:<{width}}  {value}")
    return OK


def facts() -> dict[str, str]:
    """Name -> value, in reading order."""
    found = {"octavo": __version__, "python": platform.python_version(), "system": platform.platform()}
    found["cpu"] = cpu_name()
    found |= native_facts()
    found["cpus"] = f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"
    found |= {name: _version(name) for name in PACKAGES}
    return found


def native_facts() -> dict[str, str]:
    """The native module's instruction sets and the thread count a default start would use."""
    try:
        native = importlib.import_module("octavo.kernels.native")
    except (ImportError, OctavoError) as error:
        return {"native": f"not usable: {error}"}
    return {"isa": native.isa(), "isas": " ".join(native.isas()), "threads": str(native.default_threads())}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
