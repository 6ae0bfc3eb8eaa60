"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's shape; q, k, v in one checkpoint tensor, gate and up in another.

Long variants have a longrope, Phi-4-mini turns three quarters of a head. Source: Abdin et al. 2024, "Phi-3 technical
report"; the `Phi3ForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.models.windows import layer_windows, sliding_layers
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


class Phi3DecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-5)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        inner = fields.integer(config, "intermediate_size")
        self.mlp = GatedMLP(b.sub("mlp"), width, inner, fused="gate_up_proj")

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class Phi3ForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.unknown_bias(config, "attention_bias", "mlp_bias")
        width = fields.integer(config, "hidden_size")
        vocab = fields.integer(config, "vocab_size")
        heads, kv_heads, head_dim = fields.heads(config, width)
        shape = AttentionShape(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope=positions.rope(config, head_dim),
            fused="qkv_proj",
        )
        sliding = sliding_layers(config)
        places = b.builder.kv_layers(layer_windows(config, sliding), kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width)
        self.layers = [
            Phi3DecoderLayer(model.sub("layers").sub(i), config, shape, group=group, layer=layer)
            for i, (group, layer) in enumerate(places)
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=fields.number(config, "rms_norm_eps", 1e-5))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", False) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
