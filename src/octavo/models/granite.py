"""Granite 3: Llama's shape with multipliers of the embedding, the scores and each layer's sums; logits are divided.

Source: the Granite team 2024, "Granite 3.0 language models"; the `GraniteForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


class GraniteDecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        inner = fields.integer(config, "intermediate_size")
        self.mlp = GatedMLP(b.sub("mlp"), width, inner, bias=fields.flag(config, "mlp_bias", False))
        self.residual_multiplier = fields.number(config, "residual_multiplier", 1.0)

    def __call__(self, h: View) -> View:
        scale = self.residual_multiplier
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)), scale=scale)
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)), scale=scale)


class GraniteForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
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
        count = fields.integer(config, "num_hidden_layers", most=4096)
        group = b.builder.kv_group("full", layers=count, kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(
            model.sub("embed_tokens"), vocab, width, scale=fields.number(config, "embedding_multiplier", 1.0)
        )
        self.layers = [
            GraniteDecoderLayer(model.sub("layers").sub(i), config, shape, group=group, layer=i) for i in range(count)
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
