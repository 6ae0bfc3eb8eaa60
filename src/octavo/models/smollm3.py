"""SmolLM3: Llama's shape; every fourth layer has no rope.

Source: Bakouch et al. 2025, "SmolLM3"; the `SmolLM3ForCausalLM` checkpoint layout. `no_rope_layers` holds, against its
name, a 1 for each layer that turns.
"""

from __future__ import annotations

from msgspec.structs import replace

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, RMSNorm, emit_decoder
from octavo.program.ir import View


def turning_layers(config: Config, count: int) -> list[bool]:
    """Which layers have a rope."""
    listed = config.get("no_rope_layers")
    if listed is None:
        every = fields.integer(config, "no_rope_layer_interval", 4)
        return [(layer + 1) % every != 0 for layer in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(turns not in (0, 1) for turns in listed):
        raise fields.refuse("no_rope_layers", listed, f"a list of {count} times 0 or 1")
    return [bool(turns) for turns in listed]


class SmolLM3DecoderLayer:
    def __init__(self, b: Build, config: Config, shape: AttentionShape, *, group: int, layer: int) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-6)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        inner = fields.integer(config, "intermediate_size")
        self.mlp = GatedMLP(b.sub("mlp"), width, inner, bias=fields.flag(config, "mlp_bias", False))

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class SmolLM3ForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.full_attention_only(config, switch=False)
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
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width)
        self.layers = [
            SmolLM3DecoderLayer(
                model.sub("layers").sub(i), config, shape if turns else replace(shape, rope=None), group=group, layer=i
            )
            for i, turns in enumerate(turning_layers(config, count))
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=fields.number(config, "rms_norm_eps", 1e-6))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", True) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
