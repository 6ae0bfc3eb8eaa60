"""What GGUF files call things: one row an architecture. A new family adds a row here and touches nothing else.

A row says how tensors are named, which config keys it has beyond the common ones, and in which order rotary rows are
stored. Values of tensors are never changed on the way, only whole rows of bytes are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ModelError, did_you_mean
from octavo.weights.gguf_metadata import Metadata

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
MLP = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NEIGHBOURS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
"""llama.cpp stores these projections so that rotary pairs are neighbours (2i, 2i + 1); Hugging Face pairs i with
i + head_dim / 2. Stem -> the config key that counts its heads."""


QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
SANDWICH = {
    **MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""A feed-forward with norms on both sides, and one after attention."""
FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Read as configuration (gguf_rope.py)."""


def _nothing(meta: Metadata) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One value of general.architecture."""

    model_type: str
    """Hugging Face's name of the family."""
    layer: Mapping[str, str] = field(default_factory=lambda: {**ATTENTION, **MLP})
    """Tensors of a layer: `blk.N.<key>.weight` is `model.layers.N.<value>.weight` (and `.bias`)."""
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    """Tensors outside layers, likewise."""
    ignored: tuple[str, ...] = FACTORS
    """Tensors that are no weights: read as configuration, or constants."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Layer stems whose rows are moved back to halves: NEIGHBOURS or nothing."""
    config: Callable[[Metadata], dict[str, Any]] = _nothing
    """Hugging Face keys beyond the common ones; they win over those."""
    windows: bool = False
    """The family's own rule says which layers have the file's window."""
    default_window: int = 0
    """The window of a file that names none; 0 for none."""

    def name(self, stored: str, num_layers: int) -> str | None:
        """The Hugging Face name of a stored tensor; None for one that this architecture does not have."""
        stem, _, kind = stored.rpartition(".")
        if kind not in ("weight", "bias"):
            return None
        if stem in self.top:
            return f"{self.top[stem]}.{kind}"
        prefix, _, rest = stem.partition(".")
        layer, _, part = rest.partition(".")
        if prefix != "blk" or not layer.isdecimal() or int(layer) >= num_layers:
            return None
        found = self.layer.get(part) or self._one_expert(part)
        return f"model.layers.{int(layer)}.{found}.{kind}" if found else None

    def _one_expert(self, part: str) -> str | None:
        """`ffn_gate.3`, from files older than `ffn_gate_exps`: the fourth expert's."""
        stem, _, number = part.rpartition(".")
        together = self.layer.get(f"{stem}_exps")
        if together is None or not number.isdecimal():
            return None
        place, _, leaf = together.rpartition(".")
        return f"{place}.{int(number)}.{leaf}"

    def heads(self, stored: str, config: Mapping[str, Any]) -> int:
        """How many heads' rows are to be moved in a stored tensor; 0 for none."""
        key = self.neighbours.get(stored.rpartition(".")[0].rpartition(".")[2])
        return int(config[key]) if key and stored.startswith("blk.") else 0


def _gemma(meta: Metadata) -> dict[str, Any]:
    """Files hold 1 + w for the norms."""
    return {"hidden_act": "gelu_pytorch_tanh", "norm_offset": 0}


def _gemma2(meta: Metadata) -> dict[str, Any]:
    return {
        **_gemma(meta),
        "attn_logit_softcapping": meta.get(".attn_logit_softcapping", float, 50.0),
        "final_logit_softcapping": meta.get(".final_logit_softcapping", float, 30.0),
        "query_pre_attn_scalar": _query_scalar(meta, whole=46),
    }


def _gemma3(meta: Metadata) -> dict[str, Any]:
    return {
        **_gemma(meta),
        "final_logit_softcapping": meta.get(".final_logit_softcapping", float),
        "query_pre_attn_scalar": _query_scalar(meta, whole=62),
        "rope_theta": meta.get(".rope.freq_base", float, 1_000_000.0),
        "rope_local_base_freq": meta.get(".rope.freq_base_swa", float, 10_000.0),
    }


def _query_scalar(meta: Metadata, *, whole: int) -> int:
    """Files do not say it: the head's width, but in the 27B of either family (`whole` layers) the share of a head."""
    if meta.size(".block_count") == whole:
        return meta.size(".embedding_length") // meta.size(".attention.head_count")
    return meta.size(".attention.key_length")


def _granite(meta: Metadata) -> dict[str, Any]:
    """`finetuned` is llama.cpp's switch of the ropes of these families; elsewhere it says nothing."""
    key = ".rope.scaling.finetuned"
    if not meta.get(key, bool, True):
        meta.fail(key, False, "none or True (this architecture is built with positions that turn)")
    return {
        "embedding_multiplier": meta.get(".embedding_scale", float, 1.0),
        "residual_multiplier": meta.get(".residual_scale", float, 1.0),
        "attention_multiplier": meta.get(".attention.scale", float, 1.0),
        "logits_scaling": meta.get(".logit_scale", float, 1.0),
    }


ARCHITECTURES: dict[str, Architecture] = {
    "gemma": Architecture(model_type="gemma", config=_gemma),
    "gemma2": Architecture(
        model_type="gemma2", layer={**ATTENTION, **SANDWICH}, config=_gemma2, windows=True, default_window=4096
    ),
    "gemma3": Architecture(
        model_type="gemma3_text", layer={**ATTENTION, **QK_NORM, **SANDWICH}, config=_gemma3, windows=True
    ),
    "granite": Architecture(model_type="granite", neighbours=NEIGHBOURS, config=_granite),
    "llama": Architecture(model_type="llama", neighbours=NEIGHBOURS, windows=True),
    "olmo2": Architecture(
        model_type="olmo2",
        layer={
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            **QK_NORM,
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "phi3": Architecture(
        model_type="phi3",
        windows=True,
        layer={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3", layer={**ATTENTION, **MLP, **QK_NORM}),
    "smollm3": Architecture(model_type="smollm3", neighbours=NEIGHBOURS),
}


def _experts(meta: Metadata) -> dict[str, Any]:
    """Both spellings of Hugging Face's number of experts are read from the same key."""
    return {
        "num_experts": meta.size(".expert_count"),
        "num_experts_per_tok": meta.size(".expert_used_count"),
        "moe_intermediate_size": meta.size(".expert_feed_forward_length", meta.size(".feed_forward_length")),
    }


def _granite_experts(meta: Metadata) -> dict[str, Any]:
    return {**_granite(meta), **_experts(meta)}


def _renormalised_experts(meta: Metadata) -> dict[str, Any]:
    """llama.cpp divides by the sum of the chosen experts' weights here; the file has no key for it."""
    return {**_experts(meta), "norm_topk_prob": True}


EXPERTS = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
WITH_EXPERTS: dict[str, Architecture] = {
    "granitemoe": Architecture(
        model_type="granitemoe",
        layer={
            **ATTENTION,
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_exps": "block_sparse_moe.experts.gate_proj",
            "ffn_up_exps": "block_sparse_moe.experts.up_proj",
            "ffn_down_exps": "block_sparse_moe.experts.down_proj",
        },
        neighbours=NEIGHBOURS,
        config=_granite_experts,
    ),
    "llama": Architecture(
        model_type="mixtral",
        layer={
            **ATTENTION,
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.w1",
            "ffn_down_exps": "block_sparse_moe.experts.w2",
            "ffn_up_exps": "block_sparse_moe.experts.w3",
        },
        neighbours=NEIGHBOURS,
        config=_experts,
        windows=True,
    ),
    "olmoe": Architecture(model_type="olmoe", layer={**ATTENTION, **QK_NORM, **EXPERTS}, config=_experts),
    "qwen3moe": Architecture(
        model_type="qwen3_moe",
        layer={**ATTENTION, **QK_NORM, **EXPERTS},
        config=_renormalised_experts,
    ),
}
"""Rows of files whose expert_count is above 0."""


def architecture(name: object, path: object, *, experts: bool) -> Architecture:
    """The row of a file's general.architecture, with experts or without. Raises ModelError with the known ones and the
    nearest."""
    row = (WITH_EXPERTS if experts else ARCHITECTURES).get(name) if isinstance(name, str) else None
    if row is None:
        known = ", ".join((*ARCHITECTURES, *(f"{other} with experts" for other in WITH_EXPERTS)))
        got = f"{name!r}{' with experts' if experts else ''}"
        hint = did_you_mean(name, {*ARCHITECTURES, *WITH_EXPERTS})
        raise ModelError(f"{path}: general.architecture: got {got}, allowed: {known}{hint}")
    return row
