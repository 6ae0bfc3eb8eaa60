"""Octavo serves large language models on the machine you already have.

from octavo import LLM, SamplingParams

llm = LLM("smollm2")
for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8, top_p=0.95)):
    print(output.outputs[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "EngineArgs", "RequestOutput", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from octavo.config.args import EngineArgs as EngineArgs
    from octavo.llm.async_llm import AsyncLLM as AsyncLLM
    from octavo.llm.offline import LLM as LLM
    from octavo.types import RequestOutput as RequestOutput
    from octavo.types import SamplingParams as SamplingParams

# Imported when first asked for, so that `import octavo` costs next to nothing.
_EXPORTS = {
    "LLM": "octavo.llm.offline",
    "AsyncLLM": "octavo.llm.async_llm",
    "EngineArgs": "octavo.config.args",
    "RequestOutput": "octavo.types",
    "SamplingParams": "octavo.types",
}


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
