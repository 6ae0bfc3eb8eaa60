"""Rope factors that depend on a length are fixed by what is served, logged, and bound by what their kind allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config.args import EngineArgs
from octavo.errors import DoesNotFit
from octavo.runner.loader import Planned, plan_model
from octavo.runner.memory import Machine
from octavo.weights.checkpoint import open_checkpoint
from tests.tiny import write_tiny

MACHINE = Machine(total=1 << 36, available=1 << 35)
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}


def plan(path: Path, **wishes: Any) -> Planned:
    return plan_model(EngineArgs(model=str(path), **wishes), open_checkpoint(path), machine=MACHINE)


def test_a_dynamic_rope_is_as_trained_unless_more_is_asked_for(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama", max_position_embeddings=512, rope_parameters=DYNAMIC)
    plain, longer = plan(path), plan(path, max_model_len=1024)
    assert plain.spec.limits.max_len == 512 and longer.spec.limits.max_len == 1024
    assert plain.spec.ropes() == ["rope dynamic: 512 positions served, 512 trained: frequencies as trained"]
    assert longer.spec.ropes() == ["rope dynamic: frequencies stretched for 1024 positions served (512 trained)"]
    with pytest.raises(DoesNotFit, match="allowed: up to 2048"):
        plan(path, max_model_len=2049)


def test_other_ropes_serve_what_the_config_states(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama", max_position_embeddings=512)
    assert plan(path).spec.ropes() == []
    with pytest.raises(DoesNotFit, match="allowed: up to 512"):
        plan(path, max_model_len=1024)
