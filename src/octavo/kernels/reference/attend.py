"""Reference attention over paged K and V.

A layer's cache is [num_blocks, 2, kv_heads, block_size, head_dim] in the KV dtype (second axis: K, then V). A block
table gives a sequence's blocks in order; block 0 is the null block.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
LOG2E = np.float32(1.4426950408889634)


def kv_write(cache: NDArray[Any], k: F32, v: F32, slots: NDArray[np.int64]) -> None:
    """k, v [T, kv_heads, head_dim] into positions slots[t] = block * block_size + offset; negative ones are dropped.

    Rounded once to the cache's dtype.
    """
    block_size = cache.shape[3]
    keep = slots >= 0
    block, offset = np.divmod(slots[keep], block_size)
    cache[block, 0, :, offset] = k[keep].astype(cache.dtype)
    cache[block, 1, :, offset] = v[keep].astype(cache.dtype)


def paged(cache: NDArray[Any], table: I32, length: int, first: int = 0) -> tuple[F32, F32]:
    """K and V of positions [first, length) through the block table: f32 [kv_heads, length - first, head_dim] each.

    Other slots are never read, so stale numbers in a block's tail or behind a window meet no arithmetic.
    """
    block_size = cache.shape[3]
    position = np.arange(first, length)
    block, offset = table[position // block_size], position % block_size
    k = cache[block, 0, :, offset].astype(np.float32)
    v = cache[block, 1, :, offset].astype(np.float32)
    return k.transpose(1, 0, 2), v.transpose(1, 0, 2)


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
    """q [count, heads, head_dim] at positions start…start + count − 1 of one sequence -> f32 of the same shape.

    Query head h reads KV head h * kv_heads // heads. q and P are rounded to the cache's dtype; key j is visible to
    position p where p - window < j <= p (j <= p without a window), and has weight exactly 0 elsewhere.
    s = dot * (scale * log2 e), with a softcap tanh(dot * (scale / softcap)) * (softcap * log2 e); p = exp2(s − max s),
    out = Σ round(p) v / Σ p. Source: Vaswani et al. 2017, Ainslie et al. 2023 (grouped queries), Beltagy et al. 2020
    (windows), Gemma Team 2024 (soft caps).
    """
    count, heads, dim = q.shape
    first = 0 if window is None else max(0, start - window + 1)
    k, v = paged(cache, table, start + count, first)
    kv_heads, length = k.shape[:2]
    group = heads // kv_heads
    rounded = q.astype(cache.dtype).astype(np.float32)
    key, position = np.arange(first, start + count)[None, :], np.arange(start, start + count)[:, None]
    masked = (key > position) if window is None else (key > position) | (key <= position - window)
    out = np.empty_like(q)
    factor = np.float32(scale) / np.float32(softcap) if softcap else np.float32(scale) * LOG2E
    for h in range(kv_heads):
        mine = rounded[:, h * group : (h + 1) * group].transpose(1, 0, 2).reshape(group * count, dim)
        s = ((mine @ k[h].T) * factor).reshape(group, count, length)
        if softcap:
            s = np.tanh(s) * (np.float32(softcap) * LOG2E)
        s[:, masked] = -np.inf
        p = np.exp2(s - s.max(axis=-1, keepdims=True))
        total = p.sum(axis=-1, keepdims=True, dtype=np.float32)
        p = p.astype(cache.dtype).astype(np.float32)
        o = (p.reshape(group * count, length) @ v[h]).reshape(group, count, dim) / total
        out[:, h * group : (h + 1) * group] = o.transpose(1, 0, 2)
    return out
