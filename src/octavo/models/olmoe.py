"""OLMoE: Llama's shape with an RMS norm over the whole of q and of k, and a mixture of experts in every layer.

Source: Muennighoff et al. 2024, "OLMoE: open mixture-of-experts language models"; `OlmoeForCausalLM` checkpoints.
"""

from __future__ import annotations

from octavo.models import fields, positions
from octavo.models.fields import Config
from octavo.nn import (
    Attention,
    AttentionShape,
    Build,
    Embedding,
    ExpertsShape,
    Head,
    QKNorm,
    RMSNorm,
    SparseMLP,
    emit_decoder,
)
from octavo.program.ir import View


class OlmoeDecoderLayer:
    def __init__(
        self, b: Build, config: Config, shape: AttentionShape, sparse: ExpertsShape, *, group: int, layer: int
    ) -> None:
        width = fields.integer(config, "hidden_size")
        eps = fields.number(config, "rms_norm_eps", 1e-5)
        self.builder = b.builder
        self.input_layernorm = RMSNorm(b.sub("input_layernorm"), width, eps=eps)
        self.self_attn = Attention(b.sub("self_attn"), width, shape, group=group, layer=layer)
        self.post_attention_layernorm = RMSNorm(b.sub("post_attention_layernorm"), width, eps=eps)
        self.mlp = SparseMLP(b.sub("mlp"), width, sparse)

    def __call__(self, h: View) -> View:
        h = self.builder.add_to(h, self.self_attn(self.input_layernorm(h)))
        return self.builder.add_to(h, self.mlp(self.post_attention_layernorm(h)))


class OlmoeForCausalLM:
    def __init__(self, b: Build, config: Config) -> None:
        fields.only(config, "hidden_act", "silu")
        fields.unknown_bias(config, "mlp_bias")
        fields.only(config, "clip_qkv", None)
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
            qk_norm=QKNorm(fields.number(config, "rms_norm_eps", 1e-5), per_head=False),
        )
        experts, chosen = fields.experts(config, 64, 8)
        sparse = ExpertsShape(
            experts=experts,
            chosen=chosen,
            inner=fields.integer(config, "intermediate_size"),
            norm=fields.flag(config, "norm_topk_prob", False),
        )
        count = fields.integer(config, "num_hidden_layers", most=4096)
        group = b.builder.kv_group("full", layers=count, kv_heads=kv_heads, head_dim=head_dim)
        model = b.sub("model")
        self.builder = b.builder
        self.embed_tokens = Embedding(model.sub("embed_tokens"), vocab, width)
        self.layers = [
            OlmoeDecoderLayer(model.sub("layers").sub(i), config, shape, sparse, group=group, layer=i)
            for i in range(count)
        ]
        self.norm = RMSNorm(model.sub("norm"), width, eps=fields.number(config, "rms_norm_eps", 1e-5))
        tied = self.embed_tokens if fields.flag(config, "tie_word_embeddings", False) else None
        self.lm_head = Head(b.sub("lm_head"), vocab, width, tied=tied)

    def __call__(self) -> View:
        """Emit the whole model; the logits."""
        return emit_decoder(
            self.builder, embed=self.embed_tokens, layers=self.layers, norm=self.norm, head=self.lm_head
        )
