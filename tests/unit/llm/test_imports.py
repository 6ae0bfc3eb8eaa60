"""What an import costs, and what it must not bring along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.child import child_env
from tests.tiny import write_tiny


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_env(), check=True
    ).stdout


def test_import_octavo_brings_only_itself() -> None:
    """Its time is a figure: `scripts/accept` judges it."""
    code = "import sys; before = set(sys.modules); import octavo; print(sorted(set(sys.modules) - before))"
    assert "asyncio" not in (brought := run(code))
    assert "msgspec" not in brought


def test_the_front_half_and_the_engine_bring_no_arrays_along() -> None:
    code = """
import sys
import octavo.llm.async_llm, octavo.llm.offline, octavo.engine.proc, octavo.executor.fake
heavy = {"numpy", "torch", "ml_dtypes", "prometheus_client", "jinja2", "tqdm", "huggingface_hub", "starlette"}
print(sorted(heavy & set(sys.modules)))
"""
    assert run(code).strip() == "[]"


def test_exports() -> None:
    code = (
        "import octavo; print(octavo.LLM.__name__, octavo.AsyncLLM.__name__, octavo.__version__, 'LLM' in dir(octavo))"
    )
    assert run(code).split()[:2] == ["LLM", "AsyncLLM"]
    assert "AttributeError" in run("import octavo\ntry: octavo.nothing\nexcept AttributeError: print('AttributeError')")


def test_opening_a_model_for_its_vocabulary_brings_no_arrays_along(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama")
    code = f"""
import sys
from octavo.runner.opened import open_model
open_model({str(path)!r})
print(sorted({{'numpy', 'torch', 'ml_dtypes'}} & set(sys.modules)))
"""
    assert run(code).strip() == "[]"
