"""Tiny random models whose logits transformers tells us: one row a family and shape.

`model_type` and `config` go to transformers' AutoConfig over BASE. A row states where it is compared (`lengths`: past
windows and scaling lengths) and what Octavo serves (`max_len`: rope factors that depend on a length are fixed by it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCAB = 512
SLIDING, FULL = "sliding_attention", "full_attention"
"""What `layer_types` may say."""
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
    said: Mapping[str, Any] = field(default_factory=dict)
    """Keys that the saved config.json has instead: files do not always hold what their config says."""
    lengths: tuple[int, ...] = (40, 200, 700)
    """Prompt lengths compared; every position's logits are."""
    max_len: int = 1024
    """Positions served."""
    gguf: str | None = None
    """llama.cpp's name of the architecture, where the GGUF route is tested too."""
    absolute: float = 2e-5
    """Largest |difference| of a logit in float32."""
    relative: float = 5e-5
    """The same over the logits' standard deviation: the tighter of the two for families with small logits."""
    rounding: float = 1.0
    """Times the error allowed where numbers are rounded: 2 or 3 where a rounding may send a token to another expert.
    A share of the rows is held to the plain limit all the same (SHARES of test_logits.py)."""


def rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    """The config keys of a rope kind."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def gemma3_ropes(rope_type: str = "default", **more: Any) -> dict[str, Any]:
    """A rope of its own for each kind of layer; `more`: of those that see everything."""
    full = {"rope_type": rope_type, "rope_theta": 1e6, **more}
    return {
        "rope_parameters": {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    }


GEMMA3: Mapping[str, Any] = gemma3_ropes()
LONGROPE: Mapping[str, Any] = {
    "original_max_position_embeddings": 128,
    **rope(
        "longrope",
        short_factor=[1.0 + 0.1 * i for i in range(8)],
        long_factor=[1.0 + i for i in range(8)],
        original_max_position_embeddings=128,
    ),
}

VARIANTS: Mapping[str, Variant] = {
    "llama": Variant(model_type="llama", family="llama", gguf="llama"),
    "llama-tied": Variant(model_type="llama", family="llama", config={"tie_word_embeddings": True}, gguf="llama"),
    "llama-own-head": Variant(model_type="llama", family="llama", said={"tie_word_embeddings": True}),
    "llama-no-window": Variant(model_type="llama", family="llama", said={"sliding_window": 16}),
    "llama-bias": Variant(
        model_type="llama", family="llama", config={"attention_bias": True, "mlp_bias": True}, gguf="llama"
    ),
    "llama-llama3": Variant(
        model_type="llama",
        family="llama",
        config=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
        ),
        gguf="llama",
    ),
    "llama-llama3.1": Variant(
        model_type="llama",
        family="llama",
        config={
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        gguf="llama",
    ),
    "llama-linear": Variant(model_type="llama", family="llama", config=rope("linear", factor=4.0), gguf="llama"),
    "llama-dynamic": Variant(
        model_type="llama", family="llama", config=rope("dynamic", factor=4.0), lengths=(40, 200, 512), max_len=512
    ),
    "llama-dynamic-long": Variant(
        model_type="llama", family="llama", config=rope("dynamic", factor=4.0), lengths=(700,), max_len=700
    ),
    "llama-yarn": Variant(
        model_type="llama",
        family="llama",
        config=rope("yarn", factor=4.0, original_max_position_embeddings=128),
        gguf="llama",
    ),
    "llama-yarn-mscale": Variant(
        model_type="llama",
        family="llama",
        config=rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=128,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=1.0,
            mscale_all_dim=0.5,
            truncate=False,
        ),
    ),
    "mistral": Variant(model_type="mistral", family="llama", config={"sliding_window": None, "head_dim": 32}),
    "mistral-window-16": Variant(model_type="mistral", family="llama", config={"sliding_window": 16}),
    "olmoe": Variant(
        model_type="olmoe",
        family="olmoe",
        config={"num_experts": 8, "num_experts_per_tok": 2},
        gguf="olmoe",
    ),
    "granitemoe": Variant(
        model_type="granitemoe",
        family="granitemoe",
        config={
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0625,
        },
        gguf="granitemoe",
    ),
    "granitemoe-plain": Variant(
        model_type="granitemoe",
        family="granitemoe",
        config={"num_local_experts": 8, "num_experts_per_tok": 2},
        gguf="granitemoe",
        rounding=3.0,
    ),
    "mixtral": Variant(
        model_type="mixtral", family="mixtral", config={"num_local_experts": 4}, gguf="llama", rounding=2.0
    ),
    "mixtral-window": Variant(
        model_type="mixtral", family="mixtral", config={"num_local_experts": 4, "sliding_window": 16}, rounding=3.0
    ),
    "qwen2": Variant(model_type="qwen2", family="qwen2", gguf="qwen2"),
    "qwen3-moe": Variant(
        model_type="qwen3_moe",
        family="qwen3-moe",
        config={
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
        gguf="qwen3moe",
    ),
    "qwen3-moe-mixed": Variant(
        model_type="qwen3_moe",
        family="qwen3-moe",
        config={
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 48,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "tie_word_embeddings": True,
        },
    ),
    "qwen2-tied": Variant(model_type="qwen2", family="qwen2", config={"tie_word_embeddings": True}, gguf="qwen2"),
    "qwen3": Variant(model_type="qwen3", family="qwen3", config={"head_dim": 32}, gguf="qwen3"),
    "qwen3-yarn": Variant(
        model_type="qwen3",
        family="qwen3",
        config={"head_dim": 32, **rope("yarn", factor=4.0, original_max_position_embeddings=128)},
        gguf="qwen3",
    ),
    "phi3": Variant(model_type="phi3", family="phi3", config={"original_max_position_embeddings": 512}, gguf="phi3"),
    "phi3-longrope-short": Variant(
        model_type="phi3", family="phi3", config=LONGROPE, lengths=(40, 128), max_len=128, gguf="phi3"
    ),
    "phi3-longrope-long": Variant(
        model_type="phi3", family="phi3", config=LONGROPE, lengths=(129, 200, 700), gguf="phi3"
    ),
    "phi4-mini": Variant(
        model_type="phi3",
        family="phi3",
        config={
            "hidden_size": 128,
            "original_max_position_embeddings": 512,
            "tie_word_embeddings": True,
            **rope(partial_rotary_factor=0.75),
        },
        gguf="phi3",
    ),
    "olmo2": Variant(model_type="olmo2", family="olmo2", gguf="olmo2"),
    "smollm3": Variant(model_type="smollm3", family="smollm3", gguf="smollm3"),
    "granite": Variant(
        model_type="granite",
        family="granite",
        config={
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0625,
        },
        gguf="granite",
    ),
    "gemma": Variant(model_type="gemma", family="gemma", config={"head_dim": 16}, gguf="gemma"),
    "mistral-window": Variant(model_type="mistral", family="llama", config={"sliding_window": 16, "head_dim": 32}),
    "qwen2-windows": Variant(
        model_type="qwen2",
        family="qwen2",
        config={"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "phi3-window": Variant(
        model_type="phi3",
        family="phi3",
        config={"sliding_window": 37, "original_max_position_embeddings": 512},
        gguf="phi3",
    ),
    "gemma2": Variant(
        model_type="gemma2",
        family="gemma2",
        config={"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
        gguf="gemma2",
    ),
    "gemma2-listed": Variant(
        model_type="gemma2",
        family="gemma2",
        config={"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "layer_types": [SLIDING, FULL] * 2},
        gguf="gemma2",
    ),
    "gemma2-odd": Variant(
        model_type="gemma2",
        family="gemma2",
        config={"head_dim": 32, "sliding_window": 129, "query_pre_attn_scalar": 24, "num_hidden_layers": 5},
    ),
    "gemma3": Variant(
        model_type="gemma3_text",
        family="gemma3",
        config={"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7, **GEMMA3},
        gguf="gemma3",
    ),
    "gemma3-listed": Variant(
        model_type="gemma3_text",
        family="gemma3",
        config={
            "head_dim": 16,
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
            **GEMMA3,
        },
        gguf="gemma3",
    ),
    "gemma3-linear-globals": Variant(
        model_type="gemma3_text",
        family="gemma3",
        config={
            "head_dim": 32,
            "sliding_window": 37,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 7,
            **gemma3_ropes(rope_type="linear", factor=8.0),
        },
        gguf="gemma3",
    ),
    "gemma3-linear": Variant(
        model_type="gemma3_text",
        family="gemma3",
        config={
            "head_dim": 32,
            "sliding_window": 100,
            "query_pre_attn_scalar": 24,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING],
            "final_logit_softcapping": 3.0,
            **gemma3_ropes(rope_type="linear", factor=8.0),
        },
    ),
}
