"""Every family's logits equal those that transformers computed once for the same weights (tests/oracle asks anew)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.program.interpret import load_weights
from octavo.weights.checkpoint import open_checkpoint
from tests.models.golden import FILE, write_golden
from tests.models.harness import all_logits, lowered

GOLDEN: dict[str, dict[str, Any]] = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_logits_are_transformers(tmp_path: Path, name: str) -> None:
    stored = GOLDEN[name]
    checkpoint = open_checkpoint(write_golden(tmp_path, stored["config"]))
    spec = lowered(checkpoint, max_len=stored["max_len"], max_tokens=len(stored["ids"]))
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), stored["ids"], chunk=len(stored["ids"]))
    for position, want in stored["logits"].items():
        error = np.abs(got[int(position), stored["columns"]] - np.asarray(want)).max()
        assert error < 2e-4 * stored["spread"], (position, error)
