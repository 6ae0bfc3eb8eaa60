"""Gemma (first): gelu in the feed-forward, an embedding times √width, norms that multiply by 1 + w, a tied head.

Directories store w, GGUF files 1 + w (`norm_offset` of their config is 0). Source: Gemma team 2024, "Gemma: open models
based on Gemini research and technology"; the `GemmaForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


class GemmaDecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        offset = fields.norm_offset(config)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps, offset=offset)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps, offset=offset)
        inner = fields.integer(config, "intermediate_size")
        self.mlp = GatedMLP(b.sub("mlp"), width, inner, fn="gelu_tanh")

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class GemmaForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.activation(config, "gelu_tanh", "gelu")  # early files say gelu and mean its approximation
        fields.unknown_bias(config, "mlp_bias")
        fields.only(config, "use_bidirectional_attention", False)
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
        )
        count = fields.integer(config, "num_hidden_layers", most=4096)
        group = b.builder.kv_group("full", layers=count, kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width, scale=width**0.5)
        self.layers = [
            GemmaDecoderLayer(model.sub("layers").sub(i), config, shape, group=group, layer=i) for i in range(count)
        ]
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.norm = RMSNorm(model.sub("norm"), width, eps=eps, offset=fields.norm_offset(config))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", True) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
