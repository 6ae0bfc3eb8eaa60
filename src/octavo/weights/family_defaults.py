"""What config.json means where it leaves a key out: files name only what differs from their family's class.

One row a family, by model_type; keys that a file has win, but those in UNREAD. Source: the configuration
classes of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON: Mapping[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
}
"""Of every family. use_sliding_window: a file that has a window and no such key (Mistral) means it."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    "mixtral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmoe": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "phi3": {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "qwen2": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "qwen3": {
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "qwen3_moe": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "smollm3": {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
}

NULL = ("attn_logit_softcapping", "final_logit_softcapping", "head_dim", "num_key_value_heads", "sliding_window")
"""Keys that mean something as null: no cap, no window, a width and a count that follow from others. Other keys that are
null are left out."""

ROPE_TYPES: Mapping[str, Mapping[str, str]] = {"phi3": {"yarn": "longrope"}}
"""What a family's files call a kind of rope that others have under another name."""

UNREAD: Mapping[str, tuple[str, ...]] = {"llama": ("sliding_window", "layer_types")}
"""Keys that a family's class does not read: files that have them mean nothing by them. (A GGUF file under Llama's name
may be a Mistral, and is not read here.)"""
