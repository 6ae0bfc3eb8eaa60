"""Attention over the paged cache."""

from __future__ import annotations

from msgspec import Struct

from octavo.nn.build import Build
from octavo.nn.linear import Linear
from octavo.program.ir import View
from octavo.program.rope import RopeSpec


class AttentionShape(Struct, frozen=True, kw_only=True):
    """What the layers of one KV group share."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    bias: bool = False
    """On q, k and v."""
    out_bias: bool = False


class Attention:
    """Grouped-query causal attention: q, k, v in one linear, rope in place, K and V to the cache, then attend."""

    def __init__(self, b: Build, width: int, shape: AttentionShape, *, group: int, layer: int) -> None:
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._builder = b.builder
        self._shape = shape
        self._place = (group, layer)
        self._name = b.name("attend")
        self._qkv = Linear(b, width, parts={"q_proj": q, "k_proj": kv, "v_proj": kv}, split="out", bias=shape.bias)
        self._out = Linear(b, q, parts={"o_proj": width}, split="in", bias=shape.out_bias)

    def __call__(self, x: View) -> View:
        shape, builder = self._shape, self._builder
        group, layer = self._place
        q, k, v = self._qkv.pieces(self._qkv(x))
        q = builder.rope(q.split(shape.heads), shape.rope)
        k = builder.rope(k.split(shape.kv_heads), shape.rope)
        builder.kv_write(k, v.split(shape.kv_heads), group=group, layer=layer)
        scale = shape.head_dim**-0.5
        return self._out(builder.attend(q, group=group, layer=layer, scale=scale, name=self._name))
