"""Octavo serves large language models on the machine you already have.

    from octavo import LLM, SamplingParams

The names below load on first use, so that `import octavo` costs a few milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from octavo.config.args import EngineArgs as EngineArgs
    from octavo.llm import LLM as LLM
    from octavo.llm import AsyncLLM as AsyncLLM
    from octavo.types import RequestOutput as RequestOutput
    from octavo.types import SamplingParams as SamplingParams

_WHERE = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.llm",
    "EngineArgs": "octavo.config.args",
    "SamplingParams": "octavo.types",
    "RequestOutput": "octavo.types",
}

__all__ = ["LLM", "AsyncLLM", "EngineArgs", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
