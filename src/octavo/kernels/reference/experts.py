"""Reference ops of mixtures of experts: which experts a token visits, their linears, and the sum of what they say.

Source: Shazeer et al. 2017, "Outrageously large neural networks"; docs/numerics.md, "Experts".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]


def route(logits: F32, k: int, *, norm: bool, factor: float) -> tuple[I32, F32]:
    """logits f32 [T, E] -> ids i32 [T, k], largest first, ties to the lower; weights f32 [T, k].

    weights = factor * exp(logit − largest) / sum; the sum runs over all E, or with `norm` over the k chosen. Source:
    Shazeer et al. 2017; docs/numerics.md, "Experts".
    """
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    e = np.exp(logits - np.take_along_axis(logits, ids[:, :1], axis=1))
    chosen = np.take_along_axis(e, ids, axis=1)
    total = (chosen if norm else e).sum(axis=1, keepdims=True, dtype=np.float32)
    return ids, np.asarray(chosen / total * np.float32(factor), np.float32)


def expert_linear(x: F32, ids: I32, weight: F32) -> F32:
    """x f32 [T, K] or [T * k, K], ids i32 [T, k], weight f32 [E, N, K] -> f32 [T * k, N]: row t * k + j by ids[t, j].

    Source: Shazeer et al. 2017; docs/numerics.md, "Experts".
    """
    flat = ids.reshape(-1)
    rows = x if len(x) == len(flat) else np.repeat(x, ids.shape[1], axis=0)
    out = np.empty((len(flat), weight.shape[1]), np.float32)
    for expert in np.unique(flat):
        mine = flat == expert
        out[mine] = rows[mine] @ weight[expert].T
    return out


def combine(x: F32, weights: F32) -> F32:
    """x f32 [T, k, n], weights f32 [T, k] -> f32 [T, n]: Σ_j weights[:, j] * x[:, j], j ascending.

    Source: Shazeer et al. 2017; docs/numerics.md, "Experts".
    """
    out = weights[:, 0, None] * x[:, 0]
    for j in range(1, x.shape[1]):
        out = out + weights[:, j, None] * x[:, j]
    return np.asarray(out, np.float32)
