"""What an import costs, and what it must not bring along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SRC = str(Path(__file__).resolve().parents[3] / "src")


def run(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout


def test_import_octavo_costs_next_to_nothing() -> None:
    code = "import time; t = time.process_time(); import octavo; print(time.process_time() - t); octavo.SamplingParams"
    assert min(float(run(code)) for _ in range(3)) < 0.05


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
