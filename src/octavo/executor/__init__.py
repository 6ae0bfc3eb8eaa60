"""Who runs plans. Executors are named by strings, so that the brain imports none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType

from octavo.errors import ConfigError
from octavo.executor.base import Executor as Executor

EXECUTORS = MappingProxyType(
    {
        "native": "octavo.executor.inline:InlineExecutor",
        "reference": "octavo.executor.inline:InlineExecutor",
        "fake": "octavo.executor.fake:FakeExecutor",
    }
)
"""Name -> "module:Class"."""


PRELOADS = MappingProxyType(
    {
        "native": ("octavo.executor.inline", "octavo.runner.loader", "octavo.runner.native"),
        "reference": ("octavo.executor.inline", "octavo.runner.loader", "octavo.runner.reference"),
    }
)
"""Name -> modules that loading a model will import."""


def preload(name: str) -> None:
    """Import what the executor will need while there is nothing else to do. A failure waits until it matters."""
    for module in PRELOADS.get(name, ()):
        with suppress(Exception):
            importlib.import_module(module)


def load_executor(name: str) -> Callable[..., Executor]:
    """The class behind a name of `EXECUTORS`. Raises `ConfigError` for any other name."""
    target = EXECUTORS.get(name)
    if target is None:
        raise ConfigError(f"executor: got {name!r}, allowed: {', '.join(sorted(EXECUTORS))}")
    module, _, attribute = target.partition(":")
    loaded: Callable[..., Executor] = getattr(importlib.import_module(module), attribute)
    return loaded
