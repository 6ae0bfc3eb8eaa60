"""The gguf package's reading of SmolLM2, once a session: it takes seconds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models_at_hand import smollm2


@pytest.fixture(scope="session")
def gguf_reader() -> Any:
    gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle and is not installed")
    return gguf.GGUFReader(smollm2())
