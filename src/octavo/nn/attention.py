"""Attention over the paged cache."""

from __future__ import annotations

from msgspec import Struct

from octavo.nn.build import Build
from octavo.nn.linear import Linear
from octavo.nn.norm import RMSNorm
from octavo.program.balance import Balance
from octavo.program.ir import View
from octavo.program.rope import RopeSpec


class QKNorm(Struct, frozen=True):
    """RMS norms `q_norm` and `k_norm` before the rope: of each head, or of the whole projection."""

    eps: float
    per_head: bool = True
    offset: float = 0.0
    """As RMSNorm's."""


class AttentionShape(Struct, frozen=True, kw_only=True):
    """What the layers of one KV group share."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    """None: this layer has no positions of its own."""
    bias: bool = False
    """On q, k and v."""
    out_bias: bool = False
    scale: float | None = None
    """Of the scores; None is head_dim ** -0.5."""
    softcap: float = 0.0
    """Scores become softcap * tanh(score / softcap); 0: they do not."""
    qk_norm: QKNorm | None = None
    fused: str | None = None
    """The one tensor that holds q, k and v, in checkpoints that join them."""


class Attention:
    """Grouped-query causal attention: q, k, v in one linear, norms and rope in place, K and V to the cache, attend."""

    def __init__(self, b: Build, width: int, shape: AttentionShape, *, group: int, layer: int) -> None:
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._builder = b.builder
        self._shape = shape
        self._place = (group, layer)
        self._name = b.name("attend")
        parts = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        self._qkv = Linear(b, width, parts=parts, split="out", bias=shape.bias, fused=shape.fused, careful=True)
        self._balance: str | None = None
        if shape.bias and not shape.fused and shape.qk_norm is None:
            rotary = shape.rope.rotary if shape.rope is not None else 0
            self._balance = b.builder.key_balance({b.name("k_proj.bias"): kv}, Balance(shape.kv_heads, rotary))
        self._norms: list[RMSNorm] = []
        if shape.qk_norm is not None:
            eps, per_head, offset = shape.qk_norm.eps, shape.qk_norm.per_head, shape.qk_norm.offset
            for name, columns in (("q_norm", q), ("k_norm", kv)):
                columns = shape.head_dim if per_head else columns
                norm = RMSNorm(b.sub(name), columns, eps=eps, per_head=per_head, in_place=True, offset=offset)
                self._norms.append(norm)
        self._out = Linear(b, q, parts={"o_proj": width}, split="in", bias=shape.out_bias, careful=True)

    def __call__(self, x: View) -> View:
        shape, builder = self._shape, self._builder
        group, layer = self._place
        q, k, v = self._qkv.pieces(self._qkv(x))
        if shape.qk_norm is not None and not shape.qk_norm.per_head:
            q, k = (norm(part) for norm, part in zip(self._norms, (q, k), strict=True))
        q, k, v = q.split(shape.heads), k.split(shape.kv_heads), v.split(shape.kv_heads)
        if shape.qk_norm is not None and shape.qk_norm.per_head:
            q, k = (norm(part) for norm, part in zip(self._norms, (q, k), strict=True))
        if shape.rope is not None:
            q, k = builder.rope(q, shape.rope), builder.rope(k, shape.rope)
        builder.kv_write(k, v, group=group, layer=layer, balance=self._balance)
        scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        attended = builder.attend(
            q,
            group=group,
            layer=layer,
            scale=scale,
            softcap=shape.softcap,
            balance=self._balance,
            name=self._name,
        )
        return self._out(attended)
