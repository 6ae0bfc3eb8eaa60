"""The logits that tests/models/test_families.py trusts are still transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.models.golden import FILE
from tests.oracle.make_golden import TOLD, entry

pytest.importorskip("torch", reason="the oracle extra is not installed: torch")
pytest.importorskip("transformers", reason="the oracle extra is not installed: transformers")
GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", TOLD)
def test_stored_logits(tmp_path: Path, name: str) -> None:
    assert name in GOLDEN, "a new variant: run python -m tests.oracle.make_golden"
    asked, stored = entry(TOLD[name], tmp_path), GOLDEN[name]
    assert asked["ids"] == stored["ids"] and asked["columns"] == stored["columns"]
    for position, want in stored["logits"].items():
        assert np.abs(np.subtract(asked["logits"][position], want)).max() < 1e-4 * stored["spread"]
