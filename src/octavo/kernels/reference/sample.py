"""Reference sampling of one row, in the order of docs/numerics.md ("Sampling"), in float64 over float32 logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


class RowParams(Struct, frozen=True, kw_only=True):
    """One slot's columns."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence: float
    frequency: float
    repetition: float
    seed: int
    num_prompt: int
    min_tokens: int
    bias: tuple[I32, F32]
    stops: I32


def mix(z: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection of 64 bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, position: int) -> float:
    """u in [0, 1): 53 bits of a hash of (seed, position of the sampled token)."""
    return (mix((mix(seed & _MASK) + _GAMMA * (position + 1)) & _MASK) >> 11) * 2.0**-53


def adjusted(logits: F32, params: RowParams, known: I32) -> F32:
    """Bias, penalties and min_tokens applied; `known`: the sequence's tokens up to and with this row's own. A copy."""
    x = logits.copy()
    ids, values = params.bias
    x[ids] += values
    if params.repetition != 1:
        seen = np.unique(known)
        r = np.float32(params.repetition)
        x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    if params.presence or params.frequency:
        seen, counts = np.unique(known[params.num_prompt :], return_counts=True)
        x[seen] -= np.float32(params.frequency) * counts.astype(np.float32) + np.float32(params.presence)
    if len(known) - params.num_prompt < params.min_tokens:
        x[params.stops] = -np.inf
    return x


def kept(x: F64, params: RowParams) -> NDArray[np.bool_]:
    """Which ids survive top_k, top_p (over what top_k left) and min_p; ties go to the lower id."""
    order = np.lexsort((np.arange(len(x)), -x))
    if 0 < params.top_k < len(x):
        order = order[: params.top_k]
    if params.top_p < 1:
        p = np.exp(x[order] - x[order[0]])
        before = np.cumsum(p) - p
        order = order[before < params.top_p * p.sum()]
    if params.min_p > 0:
        order = order[np.exp(x[order] - x[order[0]]) >= params.min_p]
    keep = np.zeros(len(x), bool)
    keep[order] = True
    return keep


def _greedy(largest: np.float32, temperature: float) -> bool:
    """Whether largest / temperature is no finite float32: every id is forbidden, or it is all but freezing."""
    t = np.float32(temperature)
    with np.errstate(over="ignore"):
        return bool(t < np.finfo(np.float32).tiny or not np.isfinite(largest / t))


def sample(logits: F32, params: RowParams, known: I32) -> int:
    """The token at position len(known) of a sequence whose row of raw logits [vocab] this is."""
    x = adjusted(logits, params, known)
    if _greedy(x.max(), params.temperature):
        return int(np.argmax(x))
    scaled = x.astype(np.float64) / params.temperature
    p = np.exp(scaled - scaled.max())
    p[~kept(scaled, params)] = 0
    running = np.cumsum(p)
    at = int(np.searchsorted(running, uniform(params.seed, len(known)) * running[-1], side="right"))
    return min(at, int(np.flatnonzero(p)[-1]))


def logprobs(logits: F32, target: int, top: int) -> tuple[float, int, Sequence[int], Sequence[float]]:
    """Of raw logits [vocab]: (logprob of target, its rank from 1, top ids, their logprobs); ties to the lower id."""
    x = logits.astype(np.float64)
    high = x.max()
    lse = high + np.log(np.exp(x - high).sum())
    rank = 1 + int((x > x[target]).sum()) + int((x[:target] == x[target]).sum())
    if not top:
        return float(x[target] - lse), rank, [], []
    few = np.argpartition(-x, top - 1)[:top]
    candidates = np.flatnonzero(x >= x[few].min())  # all ties of the last, so that the lower id wins
    ids = candidates[np.lexsort((candidates, -x[candidates]))][:top]
    return float(x[target] - lse), rank, ids.tolist(), (x[ids] - lse).tolist()
