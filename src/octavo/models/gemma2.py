"""Gemma 2: Gemma with a norm before and after each half, windows on every other layer, soft caps on scores and logits.

Directories store w of norms that multiply by 1 + w, GGUF files the sum (`norm_offset` of their config is 0).
Source: Gemma team 2024, "Gemma 2: improving open language models at a practical size"; the `Gemma2ForCausalLM`
checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.models.windows import every_other, layer_windows, sliding_layers
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


class Gemma2DecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps, offset = fields.number(config, "rms_norm_eps", 1e-6), fields.norm_offset(config)
        self.builder = b.builder
        self.input_layernorm, self.post_attention_layernorm, self.pre_feedforward_layernorm, self.post_norm = (
            RMSNorm(b.sub(f"{name}_layernorm"), width, eps=eps, offset=offset)
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        inner = fields.integer(config, "intermediate_size")
        self.mlp = GatedMLP(b.sub("mlp"), width, inner, fn=fields.activation(config, "gelu_tanh"))

    def __call__(self, h: View) -> View:
        y = self.post_attention_layernorm(self.self_attn(self.input_layernorm(h)))
        h = self.builder.add_to(h, y)
        return self.builder.add_to(h, self.post_norm(self.mlp(self.pre_feedforward_layernorm(h))))


class Gemma2ForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.unknown_bias(config, "mlp_bias")
        fields.only(config, "use_bidirectional_attention", False)
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
            scale=fields.number(config, "query_pre_attn_scalar", head_dim) ** -0.5,
            softcap=fields.softcap(config, "attn_logit_softcapping"),
        )
        windows = layer_windows(config, sliding_layers(config, slides=every_other))
        places = b.builder.kv_layers(windows, kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width, scale=width**0.5)
        self.layers = [
            Gemma2DecoderLayer(model.sub("layers").sub(i), config, shape, group=group, layer=layer)
            for i, (group, layer) in enumerate(places)
        ]
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.norm = RMSNorm(model.sub("norm"), width, eps=eps, offset=fields.norm_offset(config))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", True) else None
        cap = fields.softcap(config, "final_logit_softcapping")
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied, softcap=cap)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
