"""GGUF window keys -> Hugging Face's `sliding_window` and `layer_types`.

llama.cpp's converter writes a window for Gemma, Phi-3 and OLMo 3 only, and which layers it is for where that is not the
family's own rule: a list, or the period p of which all but the last layer have the window.
"""

from __future__ import annotations

from typing import Any

from octavo.weights.gguf import GGUFArray
from octavo.weights.gguf_metadata import Metadata

PATTERN = ".attention.sliding_window_pattern"
MAX_LAYERS = 4096
"""More than any model has; a list is made of as many."""
KINDS = ("full_attention", "sliding_attention")


def windows(meta: Metadata, *, known: bool, default: int = 0) -> dict[str, Any]:
    """The config keys of the file's windows, `sliding_window` None for none.

    `known`: the family has a rule of its own for which layers. Without one, and without a pattern, a window that the
    context can reach is refused: it must not be guessed, nor left out. `default`: the window of a file without the key.
    Raises FileFormatError.
    """
    window = meta.get(".attention.sliding_window", int, default)
    if window < 0:
        meta.fail(".attention.sliding_window", window, "a number of positions, or 0 for none")
    layers = _sliding(meta)
    if not window:
        return {"sliding_window": None}
    if layers is not None:
        return {
            "sliding_window": window,
            "use_sliding_window": True,
            "layer_types": [KINDS[slides] for slides in layers],
        }
    if known:
        return {"sliding_window": window}
    if window < meta.size(".context_length"):
        allowed = f"none, or {meta.arch}{PATTERN} beside it (which layers have the window is not told)"
        meta.fail(".attention.sliding_window", window, allowed)
    return {"sliding_window": None}


def _sliding(meta: Metadata) -> list[bool] | None:
    """Whether each layer has the window; None where the file does not say."""
    count, value = meta.size(".block_count"), meta.value(PATTERN)
    if value is None:
        return None
    if isinstance(value, GGUFArray) and value.code and len(value) == count:
        return [bool(each) for each in value.tolist()]
    if count > MAX_LAYERS:
        meta.fail(".block_count", count, f"at most {MAX_LAYERS}")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return [value == 0 or layer % value < value - 1 for layer in range(count)]
    got = f"{len(value)} values" if isinstance(value, GGUFArray) else value
    meta.fail(PATTERN, got, f"a list of {count}, one for each layer, or a period")
