"""The scheduler wastes no work: the probes of scripts/probes.py, asserted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).resolve().parents[2] / "scripts" / "probes.py"
_SPEC = importlib.util.spec_from_file_location("octavo_probes", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
probes = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = probes
_SPEC.loader.exec_module(probes)


@pytest.mark.parametrize("probe", probes.COUNTED, ids=lambda probe: probe.__name__)
def test_counts(probe: Any) -> None:
    missed = [str(finding) for finding in probe() if not finding.passed]
    assert not missed, "\n".join(missed)
