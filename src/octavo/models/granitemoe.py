"""Granite 3 with experts: Granite's multipliers, and a mixture of experts in every layer (top-k, then softmax).

Source: the Granite team 2024, "Granite 3.0 language models"; the `GraniteMoeForCausalLM` checkpoint layout. Experts are
stored together; weights/experts.py names them one by one.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.nn import Attention, AttentionShape, Build, Embedding, ExpertsShape, Head, RMSNorm, SparseMLP, emit_decoder
from octavo.program.ir import View


class GraniteMoeDecoderLayer:
    def __init__(
        self, b: Build, config: Config, shape: AttentionShape, sparse: ExpertsShape, *, group: int, layer: int
    ) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        self.block_sparse_moe = SparseMLP(b.sub("block_sparse_moe"), width, sparse)
        self.residual_multiplier = fields.number(config, "residual_multiplier", 1.0)

    def __call__(self, h: View) -> View:
        scale = self.residual_multiplier
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)), scale=scale)
        return self.builder.add_to(h, self.block_sparse_moe(self.post_attention_layernorm(h)), scale=scale)


class GraniteMoeForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.unknown_bias(config, "mlp_bias")
        fields.full_attention_only(config)
        width = fields.integer(config, "hidden_size")
        vocab = fields.integer(config, "vocab_size")
        heads, kv_heads, head_dim = fields.heads(config, width)
        bias = fields.flag(config, "attention_bias", False)
        shape = AttentionShape(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=positions.rope(config, head_dim),
            bias=bias,
            out_bias=bias,
            scale=fields.number(config, "attention_multiplier", 1.0),
        )
        experts, chosen = fields.experts(config, 8, 2)
        inner = fields.integer(config, "intermediate_size")
        sparse = ExpertsShape(experts=experts, chosen=chosen, inner=inner, norm=True, router="router.layer")
        count = fields.integer(config, "num_hidden_layers", most=4096)
        group = b.builder.kv_group("full", layers=count, kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(
            model.sub("embed_tokens"), vocab, width, scale=fields.number(config, "embedding_multiplier", 1.0)
        )
        self.layers = [
            GraniteMoeDecoderLayer(model.sub("layers").sub(i), config, shape, sparse, group=group, layer=i)
            for i in range(count)
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=fields.number(config, "rms_norm_eps", 1e-6))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", False) else None
        self.lm_head = Head(
            b.sub("lm_head"), vocab, width, tied=tied, scale=1 / fields.number(config, "logits_scaling", 1.0)
        )

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
