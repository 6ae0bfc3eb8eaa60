"""A tiny model's directory as a GGUF file with llama.cpp's conventions, written by the `gguf` package and its name map.

What a converter does to a family is a row of FAMILIES: rotary rows as neighbours, 1 added to norms, keys of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.tiny import read_tensors, stacked_experts


@dataclass(frozen=True)
class Family:
    """How the converter treats one architecture."""

    neighbours: bool = False
    one_plus: bool = False
    keys: Callable[[Any, Mapping[str, Any]], None] = lambda writer, config: None


def _granite(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _experts(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _granite_experts(writer: Any, config: Mapping[str, Any]) -> None:
    _granite(writer, config)
    _experts(writer, config)


def _gemma2(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _gemma3(writer: Any, config: Mapping[str, Any]) -> None:
    """The converter writes no pattern, but llama.cpp reads one: written where it is not the family's."""
    writer.add_sliding_window(config["sliding_window"])
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    if slides != [(layer + 1) % 6 != 0 for layer in range(len(slides))]:
        writer.add_sliding_window_pattern(slides)
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _phi3(writer: Any, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config.get("sliding_window") or 0)


FAMILIES: Mapping[str, Family] = {
    "llama": Family(neighbours=True),
    "granite": Family(neighbours=True, keys=_granite),
    "smollm3": Family(neighbours=True),
    "gemma": Family(one_plus=True),
    "granitemoe": Family(neighbours=True, keys=_granite_experts),
    "olmoe": Family(keys=_experts),
    "qwen3moe": Family(keys=_experts),
    "phi3": Family(keys=_phi3),
    "gemma2": Family(one_plus=True, keys=_gemma2),
    "gemma3": Family(one_plus=True, keys=_gemma3),
}
"""By llama.cpp's name; others are plain."""


def write_gguf(directory: Path, arch: str, config: Mapping[str, Any], target: Path, *, form: str = "f32") -> Path:
    """The float32 checkpoint in `directory` as `target`. `config`: config.json's keys, with defaults filled in.
    `form`: the GGML type of matrices."""
    writer = gguf.GGUFWriter(str(target), arch)
    family = FAMILIES.get(arch, Family())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_eos_token_id(2)
    _rope(writer, config, head_dim)
    family.keys(writer, config)
    if arch == "llama" and config.get("num_local_experts"):  # Mixtral goes under Llama's name
        _experts(writer, config)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, value in _tensors(directory):
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if family.neighbours and ".q_proj." in name:
            value = _neighbours(value, heads)
        elif family.neighbours and ".k_proj." in name:
            value = _neighbours(value, kv_heads)
        elif family.one_plus and name.endswith("norm.weight"):
            value = value + 1
        value = np.ascontiguousarray(value, np.float32)
        if value.ndim >= 2 and "ffn_gate_inp" not in stored and form != "f32":
            matrix = gguf.GGMLQuantizationType[form.upper()]
            writer.add_tensor(stored, gguf.quantize(value, matrix), raw_dtype=matrix)
        else:
            writer.add_tensor(stored, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _tensors(directory: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The checkpoint's tensors, experts stacked, gate and up apart."""
    for name, value in stacked_experts(read_tensors(directory)).items():
        place, joined, _ = name.partition("input_linear")
        if joined:
            for part, half in zip(("w1", "w3"), np.split(value, 2, axis=1), strict=True):
                yield f"{place}experts.{part}.weight", half
        else:
            yield name, value


def _neighbours(value: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows i and i + half of each head become 2i and 2i + 1."""
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return halves.swapaxes(1, 2).reshape(value.shape)


def _rope(writer: Any, config: Mapping[str, Any], head_dim: int) -> None:
    rope = config["rope_parameters"]
    if "sliding_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    rope = rope.get("full_attention", rope)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    original = rope.get("original_max_position_embeddings")
    match rope["rope_type"]:
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(original)
        case "llama3":
            writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim))
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "longrope":
            scale = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
            for which in ("long", "short"):
                writer.add_tensor(f"rope_factors_{which}.weight", np.asarray(rope[f"{which}_factor"], np.float32))


def _llama3_factors(rope: Mapping[str, Any], head_dim: int) -> NDArray[np.float32]:
    """What each frequency is divided by: 1 for short waves, `factor` for long ones, a blend between."""
    waves = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = np.clip((rope["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - keep) / rope["factor"] + keep)).astype(np.float32)
