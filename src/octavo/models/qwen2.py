"""Qwen2 and Qwen2.5: Llama's shape with a bias on q, k and v (none on the output projection).

Source: Yang et al. 2024, "Qwen2 technical report"; the `Qwen2ForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.models.windows import layer_windows, sliding_layers
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


class Qwen2DecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        self.mlp = GatedMLP(b.sub("mlp"), width, fields.integer(config, "intermediate_size"))

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class Qwen2ForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.unknown_bias(config, "mlp_bias")
        width = fields.integer(config, "hidden_size")
        vocab = fields.integer(config, "vocab_size")
        heads, kv_heads, head_dim = fields.heads(config, width)
        rope = positions.rope(config, head_dim)
        shape = AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rope=rope, bias=True)
        first = fields.integer(config, "max_window_layers", 28, least=0)
        sliding = sliding_layers(config, slides=lambda layer: layer >= first, switch=False)
        places = b.builder.kv_layers(layer_windows(config, sliding), kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width)
        self.layers = [
            Qwen2DecoderLayer(model.sub("layers").sub(i), config, shape, group=group, layer=layer)
            for i, (group, layer) in enumerate(places)
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=fields.number(config, "rms_norm_eps", 1e-6))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", False) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
