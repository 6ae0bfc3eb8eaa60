"""Fixtures of the oracle tests: tiny models made once."""

from __future__ import annotations

from collections.abc import Callable
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
