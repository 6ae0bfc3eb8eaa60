"""Tests do not read the settings file of whoever runs them. The errors that were measured are written at the end.

OCTAVO_ORACLE_JSON names a file for the figures that scripts/models-table turns into docs/models.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

# The asserts of the modules that tests import hold under `python -O` too, as the tests' own do.
HERE = Path(__file__)
pytest.register_assert_rewrite(*(f"tests.{path.stem}" for path in HERE.parent.iterdir() if path != HERE))


def pytest_configure() -> None:
    os.environ["OCTAVO_CONFIG"] = os.devnull


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
