"""Gemma 3, text: norms before and after each half and on q and k, windows on five of six layers, a rope for each kind.

Directories store w of norms that multiply by 1 + w, GGUF files the sum (`norm_offset` of their config is 0). Source:
Gemma team 2025, "Gemma 3 technical report"; the `Gemma3ForCausalLM` checkpoint layout.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.models.windows import all_but_every, layer_windows, sliding_layers
from octavo.nn import Attention, AttentionShape, Build, Embedding, GatedMLP, Head, QKNorm, RMSNorm, emit_decoder
from octavo.program.ir import View
from octavo.program.rope import RopeSpec


def ropes(config: Config, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Of layers that see everything, and of those with a window.

    From a set for each kind in `rope_parameters`, or from the older `rope_theta`, `rope_scaling` (which is not for
    windows) and `rope_local_base_freq`.
    """
    found = config.get("rope_parameters")
    if isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping):
        full, local = found["full_attention"], found.get("sliding_attention") or {}
        return positions.rope(config, head_dim, parameters=full), positions.rope(config, head_dim, parameters=local)
    local = {"rope_theta": fields.number(config, "rope_local_base_freq", 10_000.0)}
    return positions.rope(config, head_dim), positions.rope(config, head_dim, parameters=local)


class Gemma3DecoderLayer:
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


class Gemma3ForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.unknown_bias(config, "mlp_bias")
        width = fields.integer(config, "hidden_size")
        vocab = fields.integer(config, "vocab_size")
        heads, kv_heads, head_dim = fields.heads(config, width)
        bias = fields.flag(config, "attention_bias", False)
        fields.only(config, "use_bidirectional_attention", False)
        period = fields.integer(config, "sliding_window_pattern", 6)
        sliding = sliding_layers(config, slides=all_but_every(period))
        shapes = [
            AttentionShape(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                rope=rope,
                bias=bias,
                out_bias=bias,
                scale=fields.number(config, "query_pre_attn_scalar", head_dim) ** -0.5,
                softcap=fields.softcap(config, "attn_logit_softcapping"),
                qk_norm=QKNorm(fields.number(config, "rms_norm_eps", 1e-6), offset=fields.norm_offset(config)),
            )
            for rope in ropes(config, head_dim)
        ]
        places = b.builder.kv_layers(layer_windows(config, sliding), kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width, scale=width**0.5)
        self.layers = [
            Gemma3DecoderLayer(model.sub("layers").sub(i), config, shapes[slide], group=group, layer=layer)
            for i, ((group, layer), slide) in enumerate(zip(places, sliding, strict=True))
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
