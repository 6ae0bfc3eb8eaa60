"""The rows of scripts/accept that docs/models.md gives."""

from __future__ import annotations

import re
from pathlib import Path

from bench.real_models import families
from bench.rows import Context

ROOT = Path(__file__).resolve().parents[3]


def test_the_table_of_families_is_read() -> None:
    variants, worst = families(Context(ROOT, "python", "smollm2", True, None, lambda: ""))
    found = re.fullmatch(r"(\d+) of (\d+) families", str(variants.value))
    assert found is not None and int(found[1]) > int(found[2]) > 10
    assert 0 < float(str(worst.value)) < 1e-3
