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
    return at_hand(GEMMA)


def qwen() -> Path:
    """Path of Qwen2.5-Coder-0.5B-Instruct's Q4_K_M file."""
    return at_hand(QWEN)


def smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct's Q4_1 file."""
    return at_hand(SMOLLM2)


def at_hand(name: str) -> Path:
    """Path of one of these files."""
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    if folder and (Path(folder) / name).exists():
        return Path(folder) / name
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"
    for found in sorted(cache.rglob(name)):
        return found
    pytest.skip(f"{name} is neither in OCTAVO_TEST_MODELS nor in Octavo's cache (`octavo pull smollm2` for SmolLM2)")
