"""The places of this machine, in the order in which a model is looked for."""

from __future__ import annotations

from pathlib import Path

from octavo.config.folders import user_cache
from octavo.weights.sources import hub_cache, llamacpp, lmstudio, ollama
from octavo.weights.sources.hub_cache import HubCache
from octavo.weights.sources.llamacpp import LlamaCpp
from octavo.weights.sources.lmstudio import LMStudio
from octavo.weights.sources.ollama import Ollama
from octavo.weights.sources.own import OwnCache
from octavo.weights.sources.place import Place


def places(cache_dir: str | Path | None = None) -> tuple[Place, ...]:
    """All places. `cache_dir` (--download-dir) comes before the usual cache of what Octavo fetches."""
    extra = () if cache_dir is None else (Path(cache_dir).expanduser(),)
    return (
        OwnCache(tuple(dict.fromkeys((*extra, user_cache())))),
        HubCache(tuple(dict.fromkeys((*extra, *hub_cache.cache_folders())))),
        LMStudio(lmstudio.model_folders()),
        LlamaCpp(llamacpp.cache_folders()),
        Ollama(tuple(dict.fromkeys(ollama.model_folders()))),
    )
