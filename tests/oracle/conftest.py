"""Fixtures of the oracle tests: tiny models made once, and the errors that were measured, written at the end.

OCTAVO_ORACLE_JSON names a file for the figures that scripts/models-table turns into docs/models.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.models import make
from tests.oracle.variants import VARIANTS


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """(variant name, dtype of its checkpoint) -> the transformers model and the directory; made once."""
    known: dict[tuple[str, str], tuple[Any, Path]] = {}

    def get(name: str, dtype: str = "float32") -> tuple[Any, Path]:
        if (name, dtype) not in known:
            directory = tmp_path_factory.mktemp(f"{name}-{dtype}")
            known[name, dtype] = (make(VARIANTS[name], directory, dtype=dtype), directory)
        return known[name, dtype]

    return get


@pytest.fixture(scope="session")
def figures() -> Iterator[list[dict[str, Any]]]:
    """Cells of docs/models.md: variant, source, format and errors, appended by tests that passed."""
    cells: list[dict[str, Any]] = []
    yield cells
    target = os.environ.get("OCTAVO_ORACLE_JSON")
    if target:
        import torch
        import transformers

        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        Path(target).write_text(json.dumps({"versions": versions, "cells": cells}, indent=1) + "\n")
