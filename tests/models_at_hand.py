"""Real models for tests: from the folder OCTAVO_TEST_MODELS, or the user's cache of `octavo pull`; a skip otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GEMMA = "gemma-3-270m-base-q4_k_m.gguf"
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


def gemma() -> Path:
    """Path of Gemma 3 270M's Q4_K_M file."""
    path = Path(os.environ.get("OCTAVO_TEST_MODELS") or ".") / GEMMA
    if not path.exists():
        pytest.skip(f"{GEMMA} is not in OCTAVO_TEST_MODELS")
    return path


def smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct's Q4_1 file."""
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    if folder and (Path(folder) / SMOLLM2).exists():
        return Path(folder) / SMOLLM2
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"
    for found in sorted(cache.rglob(SMOLLM2)):
        return found
    pytest.skip(f"{SMOLLM2} is neither in OCTAVO_TEST_MODELS nor in the cache; run `octavo pull smollm2`")


def qwen() -> Path:
    """Path of Qwen2.5-Coder-0.5B-Instruct's Q4_K_M file."""
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    if not folder:
        pytest.skip(f"OCTAVO_TEST_MODELS names no folder to find {QWEN} in")
    if not (Path(folder) / QWEN).exists():
        pytest.skip(f"{QWEN} is not in OCTAVO_TEST_MODELS ({folder})")
    return Path(folder) / QWEN
