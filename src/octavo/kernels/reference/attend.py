"""Reference attention over paged K and V.

A layer's cache is [num_blocks, 2, kv_heads, block_size, head_dim] in the KV dtype (second axis: K, then V). A block
table gives a sequence's blocks in order; block 0 is the null block. An int8 cache has no last axis: an element is one
head of one token, its codes with the bits of their bfloat16 scale (`code_dtype`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
LOG2E = np.float32(1.4426950408889634)
TILE = 128
"""Keys whose weights share a scale where the cache is int8."""
QUERY_TOP, WEIGHT_TOP = np.float32(4095), np.float32(32767)


def code_dtype(dim: int) -> np.dtype[np.void]:
    """K or V of one token and KV head in an int8 cache: dim + 2 bytes."""
    return np.dtype([("codes", np.int8, (dim,)), ("scale", np.uint16)])


def rotate(x: F32) -> F32:
    """[..., dim] by the Walsh-Hadamard matrix in runs of the largest power of two that divides dim, not normalised.

    Twice is times the run. A few loud dims become a little louder everywhere, so that one scale serves all.
    """
    dim, half, out = x.shape[-1], 1, x
    while half < rotation_run(dim):
        pairs = out.reshape(*x.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        out = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        half *= 2
    return out


def rotation_run(dim: int) -> int:
    return dim & -dim


def to_codes(x: F32, top: np.float32) -> tuple[F32, F32]:
    """[..., n] -> whole numbers of at most `top`, and the scale [..., 1] with which they are x again.

    Both 0 where the largest magnitude is under 2**-100; codes 0 and scale NaN where a number is not finite.
    """
    amax = np.abs(x).max(axis=-1, keepdims=True)
    usable = np.isfinite(amax) & (amax >= 2.0**-100)
    codes = np.rint(np.where(usable, x * (top / np.where(usable, amax, 1)), 0))
    return codes.astype(np.float32), np.where(np.isfinite(amax), np.where(usable, amax / top, 0), np.nan)


def encode_heads(x: F32) -> NDArray[np.void]:
    """[..., dim] -> code_dtype(dim) [...] of x rotated: scale max |x| / 127, rounded up to bfloat16; code x / scale."""
    x = rotate(x)
    out = np.empty(x.shape[:-1], code_dtype(x.shape[-1]))
    scale = to_codes(x, np.float32(127))[1][..., 0]
    bits = ((scale.view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype(np.uint16)
    out["scale"] = np.where(np.isnan(scale), 0x7FC0, bits)
    rounded = _scales(out)
    usable = rounded > 0
    inverse = (1 / np.where(usable, rounded, 1)).astype(np.float32)[..., None]
    out["codes"] = np.rint(np.where(usable[..., None], x, 0) * inverse).astype(np.int8)
    return out


def _scales(heads: NDArray[np.void]) -> F32:
    return (heads["scale"].astype(np.uint32) << 16).view(np.float32)


def kv_write(cache: NDArray[Any], k: F32, v: F32, slots: NDArray[np.int64]) -> None:
    """k, v f32 [T, kv_heads, head_dim] into slots i64 [T]: block * block_size + offset; negative ones dropped.

    Rounded once to the cache's dtype: f32, bf16, or `code_dtype` (int8). cache: as this module says. Source: Kwon et
    al. 2023 (paged attention); docs/numerics.md, "Attention".
    """
    block_size = cache.shape[3]
    keep = slots >= 0
    block, offset = np.divmod(slots[keep], block_size)
    for i, x in enumerate((k, v)):
        cache[block, i, :, offset] = encode_heads(x[keep]) if cache.dtype.names else x[keep].astype(cache.dtype)


def paged(cache: NDArray[Any], table: I32, length: int, first: int = 0) -> tuple[F32, F32, F32, F32]:
    """K and V of positions [first, length) through the block table: f32 [kv_heads, length - first, head_dim] each.

    Then what to multiply them with, [kv_heads, length - first]: ones, or the scales of codes. Other slots are never
    read, so stale numbers in a block's tail or behind a window meet no arithmetic.
    """
    block_size = cache.shape[3]
    position = np.arange(first, length)
    block, offset = table[position // block_size], position % block_size
    k, v = cache[block, 0, :, offset].swapaxes(0, 1), cache[block, 1, :, offset].swapaxes(0, 1)
    if cache.dtype.names:
        return k["codes"].astype(np.float32), v["codes"].astype(np.float32), _scales(k), _scales(v)
    ones = np.ones(k.shape[:2], np.float32)
    return k.astype(np.float32), v.astype(np.float32), ones, ones


def attend(
    q: F32,
    cache: NDArray[Any],
    table: I32,
    start: int,
    scale: float,
    *,
    window: int | None = None,
    softcap: float = 0.0,
) -> F32:
    """q f32 [count, heads, head_dim] at positions start…start + count − 1 of one sequence -> f32 of the same shape.

    cache: f32, bf16 or `code_dtype` (int8), as this module says; table i32 [blocks]: the sequence's blocks in order.
    Query head h reads KV head h * kv_heads // heads. q and P are rounded to the cache's dtype; key j is visible to
    position p where p - window < j <= p (j <= p without a window), and has weight exactly 0 elsewhere.
    s = dot * (scale * log2 e), with a softcap tanh(dot * (scale / softcap)) * (softcap * log2 e); p = exp2(s − max s),
    out = Σ round(p) v / Σ p. An int8 cache is multiplied in codes of rotated heads: q in 12 bits, and p times
    V's scales, over each tile of keys, in 15; the sums of products are exact. Source: Vaswani et al. 2017, Ainslie et
    al. 2023 (grouped queries), Beltagy et al. 2020 (windows), Gemma Team 2024 (soft caps), Ashkboos et al. 2024
    (rotations).
    """
    count, heads, dim = q.shape
    first = 0 if window is None else max(0, start - window + 1)
    k, v, k_scale, v_scale = paged(cache, table, start + count, first)
    coded = cache.dtype.names is not None
    kv_heads, length = k.shape[:2]
    group = heads // kv_heads
    rounded, q_scale = (
        to_codes(rotate(q), QUERY_TOP) if coded else (q.astype(cache.dtype).astype(np.float32), np.ones(1))
    )
    q_scale = np.broadcast_to(q_scale, (count, heads, 1)).astype(np.float32)
    key, position = np.arange(first, start + count)[None, :], np.arange(start, start + count)[:, None]
    masked = (key > position) if window is None else (key > position) | (key <= position - window)
    out = np.empty_like(q)
    factor = np.float32(scale) / np.float32(softcap) if softcap else np.float32(scale) * LOG2E
    run = np.float32(rotation_run(dim) if coded else 1)
    factor = factor / run
    for h in range(kv_heads):
        mine, scale_of = (
            x[:, h * group : (h + 1) * group].transpose(1, 0, 2).reshape(group * count, -1) for x in (rounded, q_scale)
        )
        dots = _exact(mine, k[h].T) if coded else mine @ k[h].T
        s = ((dots * k_scale[h]) * (scale_of * factor)).reshape(group, count, length)
        if softcap:
            s = np.tanh(s) * (np.float32(softcap) * LOG2E)
        s[:, masked] = -np.inf
        p = np.exp2(s - s.max(axis=-1, keepdims=True))
        total = p.sum(axis=-1, keepdims=True, dtype=np.float32)
        p = p.reshape(group * count, length)
        o = _weighed(p, v[h], v_scale[h], first) if coded else p.astype(cache.dtype).astype(np.float32) @ v[h]
        o = o.reshape(group, count, dim) / total
        out[:, h * group : (h + 1) * group] = o.transpose(1, 0, 2)
    return rotate(out) / run if coded else out


def _exact(a: F32, b: F32) -> F32:
    """a @ b of whole numbers, rounded once."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


def _weighed(p: F32, codes: F32, scale: F32, first: int) -> F32:
    """p [rows, keys] times scale [keys] times codes [keys, dim], of keys from position `first` on -> [rows, dim]."""
    w = np.where(p == 0, np.float32(0), p * scale)
    out = np.zeros((len(p), codes.shape[1]), np.float32)
    at, length = 0, len(codes)
    while at < length:
        end = min(length, (first + at) // TILE * TILE + TILE - first)
        weights, factor = to_codes(w[:, at:end], WEIGHT_TOP)
        out += _exact(weights, codes[at:end]) * factor
        at = end
    return out
