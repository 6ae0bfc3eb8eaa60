"""Reading a config's sliding windows: which layers see all positions before them, which only the last ones."""

from __future__ import annotations

from collections.abc import Callable

from octavo.models.fields import Config, flag, integer, refuse

KINDS = {"full_attention": False, "sliding_attention": True}
"""What `layer_types` may say -> whether the layer has a window."""


def every_layer(layer: int) -> bool:
    return True


def every_other(layer: int) -> bool:
    """The even layers."""
    return layer % 2 == 0


def all_but_every(period: int) -> Callable[[int], bool]:
    """All but the last of each `period` layers."""
    return lambda layer: (layer + 1) % period != 0


def sliding_layers(config: Config, *, slides: Callable[[int], bool] = every_layer, switch: bool = True) -> list[bool]:
    """Which layers are of the sliding kind.

    By `layer_types`; without it by `slides`, where the config has a `sliding_window` in use. `switch`: what a config
    without `use_sliding_window` means by that. Raises ModelError.
    """
    count = integer(config, "num_hidden_layers", most=4096)
    kinds = config.get("layer_types")
    if kinds is None:
        used = config.get("sliding_window") is not None and flag(config, "use_sliding_window", switch)
        return [used and slides(layer) for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        got = f"{len(kinds)} of them" if isinstance(kinds, list) else kinds
        raise refuse("layer_types", got, f"a list of {count}, one for each layer")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise refuse("layer_types", unknown[0], ", ".join(map(repr, KINDS)))
    return [KINDS[kind] for kind in kinds]


def layer_windows(config: Config, sliding: list[bool]) -> list[int | None]:
    """The window of each layer; None where it sees everything. A position sees itself and the window - 1 before it."""
    if not any(sliding):
        return [None] * len(sliding)
    window = integer(config, "sliding_window", most=1 << 30)
    endless = window >= integer(config, "max_position_embeddings", most=1 << 30)
    return [window if slide and not endless else None for slide in sliding]
