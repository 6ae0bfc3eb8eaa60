"""Qwen3-MoE: a norm on each head of q and k before rope, and sparse layers without a shared expert.

Source: Yang et al. 2025, "Qwen3 technical report"; the `Qwen3MoeForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.models.windows import layer_windows, sliding_layers
from octavo.nn import (
    Attention,
    AttentionShape,
    Build,
    Embedding,
    ExpertsShape,
    GatedMLP,
    Head,
    QKNorm,
    RMSNorm,
    SparseMLP,
    emit_decoder,
)
from octavo.program.ir import View


def is_sparse(config: Config, layer: int) -> bool:
    """Whether a layer is one of experts: every `decoder_sparse_step`-th, but for those named dense."""
    step = fields.integer(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(i, int) for i in dense):
        raise fields.refuse("mlp_only_layers", dense, "a list of layer numbers")
    return layer not in dense and (layer + 1) % step == 0


class Qwen3MoeDecoderLayer:
    def __init__(
        self, b: Build, config: Config, shape: AttentionShape, sparse: ExpertsShape | None, *, group: int, layer: int
    ) -> None:
        """`sparse` is None in a dense layer."""
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        mlp = b.sub("mlp")
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        self.mlp: SparseMLP | GatedMLP = (
            SparseMLP(mlp, width, sparse)
            if sparse is not None
            else GatedMLP(mlp, width, fields.integer(config, "intermediate_size"))
        )

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class Qwen3MoeForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.unknown_bias(config, "mlp_bias")
        width = fields.integer(config, "hidden_size")
        vocab = fields.integer(config, "vocab_size")
        heads, kv_heads, head_dim = fields.heads(config, width)
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        bias = fields.flag(config, "attention_bias", False)
        shape = AttentionShape(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=positions.rope(config, head_dim),
            bias=bias,
            out_bias=bias,
            qk_norm=QKNorm(eps),
        )
        experts, chosen = fields.experts(config, 128, 8)
        sparse = ExpertsShape(
            experts=experts,
            chosen=chosen,
            inner=fields.integer(config, "moe_intermediate_size"),
            norm=fields.flag(config, "norm_topk_prob", False),
        )
        sliding = sliding_layers(config, switch=False)
        places = b.builder.kv_layers(layer_windows(config, sliding), kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width)
        self.layers = [
            Qwen3MoeDecoderLayer(
                model.sub("layers").sub(i),
                config,
                shape,
                sparse if is_sparse(config, i) else None,
                group=group,
                layer=layer,
            )
            for i, (group, layer) in enumerate(places)
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=eps)
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", False) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
