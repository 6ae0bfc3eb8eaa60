"""A native module that cannot be imported fails the run. Tests do not read the settings file of whoever runs them. The
errors that were measured are written at the end.

OCTAVO_ORACLE_JSON names a file for the figures that scripts/models-table turns into docs/models.md.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# The asserts of the modules that tests import hold under `python -O` too, as the tests' own do.
HERE = Path(__file__)
pytest.register_assert_rewrite(*(f"tests.{path.stem}" for path in HERE.parent.iterdir() if path != HERE))


def pytest_configure() -> None:
    os.environ["OCTAVO_CONFIG"] = os.devnull
    why = why_broken()
    if why:
        raise pytest.UsageError(why)


def why_broken() -> str:
    """What is wrong with a native module that was built. Tests skip where there is none; one that cannot be imported
    would make them skip too."""
    found = find_spec("octavo._native")
    if found is None:
        return ""
    try:
        for module in ("octavo._native", "octavo.kernels.native", "octavo.kernels.start_notes"):
            importlib.import_module(module)
    except Exception as error:
        return f"{found.origin} is there and cannot be used: {type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="session")
def figures() -> Iterator[list[dict[str, Any]]]:
    """Cells of docs/models.md, appended by tests that passed: family, source, format, errors, and of a model that
    transformers made its variant."""
    cells: list[dict[str, Any]] = []
    yield cells
    target = os.environ.get("OCTAVO_ORACLE_JSON")
    if target:
        versions = {name: _version(name) for name in ("torch", "transformers", "gguf")}
        Path(target).write_text(json.dumps({"versions": versions, "cells": cells}, indent=1) + "\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
