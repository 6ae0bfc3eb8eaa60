"""The Python API: `LLM` in this process, `AsyncLLM` with the engine in its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.llm.async_llm import AsyncLLM as AsyncLLM
    from octavo.llm.offline import LLM as LLM

__all__ = ["LLM", "AsyncLLM"]

_EXPORTS = {"LLM": "octavo.llm.offline", "AsyncLLM": "octavo.llm.async_llm"}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'octavo.llm' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
