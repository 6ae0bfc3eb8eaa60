"""The scheduler wastes no work: the probes that count, asserted."""

from __future__ import annotations

from typing import Any

import pytest

from bench.probes.counted import COUNTED


@pytest.mark.parametrize("probe", COUNTED, ids=lambda probe: probe.__name__)
def test_counts(probe: Any) -> None:
    missed = [str(finding) for finding in probe() if not finding.passed]
    assert not missed, "\n".join(missed)
