"""Tiny random models whose logits transformers tells us: one row a family and shape.

`model_type` and `config` go to transformers' AutoConfig over BASE. A row states where it is compared (`lengths`: past
windows and scaling lengths) and what Octavo serves (`max_len`: rope factors that depend on a length are fixed by it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 512
BASE: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row."""

    model_type: str
    family: str
    """The row of docs/models.md it belongs to."""
    config: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = (40, 200, 700)
    """Prompt lengths compared; every position's logits are."""
    max_len: int = 1024
    """Positions served."""
    gguf: str | None = None
    """llama.cpp's name of the architecture, where the GGUF route is tested too."""
    absolute: float = 1e-5
    """Largest |difference| of a logit in float32."""
    relative: float = 2e-5
    """The same over the logits' standard deviation: the tighter of the two for families with small logits."""


def rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    """The config keys of a rope kind."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


VARIANTS: Mapping[str, Variant] = {
    "llama": Variant(model_type="llama", family="llama", gguf="llama"),
    "llama-tied": Variant(model_type="llama", family="llama", config={"tie_word_embeddings": True}, gguf="llama"),
    "llama-bias": Variant(model_type="llama", family="llama", config={"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": Variant(
        model_type="llama",
        family="llama",
        config=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
        ),
    ),
    "mistral": Variant(model_type="mistral", family="llama", config={"sliding_window": None, "head_dim": 32}),
    "qwen2": Variant(model_type="qwen2", family="qwen2", gguf="qwen2"),
    "qwen2-tied": Variant(model_type="qwen2", family="qwen2", config={"tie_word_embeddings": True}, gguf="qwen2"),
}
