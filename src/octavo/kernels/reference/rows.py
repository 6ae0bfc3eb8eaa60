"""Reference ops on rows. All compute in float32 and return float32; the caller rounds once to the buffer's dtype.

NumPy's row sums are pairwise and its exp is the platform's: this reference judges values, not bits (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I32: TypeAlias = NDArray[np.int32]
GROUP = 32
Q8_LEAST, Q8_TOP = np.float32(2.0**-90), np.float32(2.0**100)
"""A q8 group's largest magnitude is below the second, and counts as 0 below the first."""


def embed(weight: F32, tokens: I32) -> F32:
    """weight f32 [vocab, width], tokens i32 [T] -> f32 [T, width]: row tokens[t].

    Source: docs/numerics.md, "Linear".
    """
    return np.asarray(weight[tokens], np.float32)


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x f32 [..., n], weight f32 [n] -> f32 [..., n]: (x * r) * weight with r = 1 / sqrt(mean(x²) + eps).

    Source: Zhang and Sennrich 2019.
    """
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    r = np.float32(1) / np.sqrt(mean + np.float32(eps))
    return np.asarray((x * r) * weight, np.float32)


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """x f32 [T, heads, d]; cos, sin f32 [T, rotary / 2] -> f32 [T, heads, d].

    The first `rotary` of each head turned, the rest kept. Pairs (i, i + rotary / 2): y0 = x0 c − x1 s,
    y1 = x0 s + x1 c. Source: Su et al. 2021, rotate-half layout.
    """
    half = cos.shape[-1]
    c, s = cos[:, None, :], sin[:, None, :]
    x0, x1 = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([x0 * c - x1 * s, x0 * s + x1 * c, x[..., 2 * half :]], axis=-1)


def scale(x: F32, factor: float, *, softcap: float = 0.0) -> F32:
    """x f32 [...] -> f32 [...]: x * factor, then softcap * tanh(that / softcap) where softcap is above 0.

    Source: Gemma Team 2024 (Gemma 2), section 2.
    """
    y = x * np.float32(factor)
    return np.asarray(np.float32(softcap) * np.tanh(y / np.float32(softcap)) if softcap else y, np.float32)


def gelu_mul(gate: F32, up: F32) -> F32:
    """gate, up f32 [..., n] -> f32 [..., n]: gate Φ(gate) * up, Φ the normal distribution.

    Source: Hendrycks and Gimpel 2016.
    """
    erf = np.vectorize(math.erf, otypes=[np.float64])
    phi = 0.5 * (1 + erf(gate.astype(np.float64) / math.sqrt(2)))
    return np.asarray(gate * phi.astype(np.float32) * up, np.float32)


def gelu_tanh_mul(gate: F32, up: F32) -> F32:
    """gate, up f32 [..., n] -> f32 [..., n]: gate / (1 + exp(−2u)) * up, u = √(2/π) (gate + 0.044715 gate³).

    The same as gate * (1 + tanh(u)) / 2 * up. Source: Hendrycks and Gimpel 2016.
    """
    twice = gate * (np.float32(2 * math.sqrt(2 / math.pi)) * (np.float32(1) + np.float32(0.044715) * gate * gate))
    with np.errstate(over="ignore"):
        return np.asarray(gate / (np.float32(1) + np.exp(-twice)) * up, np.float32)


def silu_mul(gate: F32, up: F32) -> F32:
    """gate, up f32 [..., n] -> f32 [..., n]: gate / (1 + exp(−gate)) * up. Source: Shazeer 2020 (SwiGLU)."""
    with np.errstate(over="ignore"):  # exp(−gate) = inf gives 0, which is the limit
        return np.asarray(gate / (np.float32(1) + np.exp(-gate)) * up, np.float32)


ACTIVATIONS: Mapping[str, Callable[[F32, F32], F32]] = {
    "silu": silu_mul,
    "gelu": gelu_mul,
    "gelu_tanh": gelu_tanh_mul,
}
"""By the name in program/ir.py."""


def add(a: F32, b: F32) -> F32:
    """a, b f32 [T, n] -> f32 [T, n]: a + b, the residual connection. Source: He et al. 2016."""
    return a + b


def gather(x: F32, rows: I32) -> F32:
    """x f32 [T, n], rows i32 [R] -> f32 [R, n]: x[rows], the positions whose logits are wanted.

    Source: docs/numerics.md, "Rows".
    """
    return np.asarray(x[rows])


def round_bf16(x: F32) -> F32:
    """x f32 [...] -> f32 [...]: to bf16, nearest even, and back. Source: IEEE 754-2019, 4.3.1."""
    import ml_dtypes  # here: loading packs with native kernels and imports this file, and a start has no 20 ms to lose

    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantize(x: F32) -> tuple[NDArray[np.int8], F32, F32]:
    """x [rows, K] f32 -> codes int8 [rows, K], scale f32 [rows, G], xsum f32 [rows, G]; G groups of 32 along K.

    scale = the smallest power of two with which no code of the group is above 127, code = rne(x / scale), xsum =
    scale * Σ codes. Codes are 0 and scale is 1 where amax < Q8_LEAST, NaN unless amax < Q8_TOP. Source:
    docs/numerics.md, "Activations: q8".
    """
    rows, k = x.shape
    padded = in_groups(x)
    amax = np.abs(padded).max(axis=2)
    coded = (amax >= Q8_LEAST) & (amax < Q8_TOP)  # false for a NaN
    mantissa, exponent = np.frexp(np.where(coded, amax, 1))  # amax = mantissa * 2^exponent, mantissa in [1/2, 1)
    power = np.ldexp(np.float32(1), exponent - 7 + (mantissa >= 127.5 / 128))
    codes = np.rint(np.where(coded[:, :, None], padded, 0) / power[:, :, None]).astype(np.int8)
    scale = np.where(coded, power, np.where(amax < Q8_LEAST, 1, np.nan)).astype(np.float32)
    total = codes.astype(np.int32).sum(axis=2)
    xsum = np.asarray(scale * total.astype(np.float32), np.float32)
    return codes.reshape(rows, GROUP * scale.shape[1])[:, :k], scale, xsum


def quantize_token(x: F32) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
    """x [rows, K] f32 -> codes int8 [rows, K], scale f32 [rows], sum of codes i32 [rows].

    scale = amax / 127, code = rne(x * (127 / amax)). A row of zeros has scale 0. Source: docs/numerics.md,
    "Activations: q8t".
    """
    amax = np.abs(x).max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(amax > 0, np.float32(127) / amax, np.float32(0)).astype(np.float32)
        codes = np.clip(np.nan_to_num(np.rint(x * inverse[:, None])), -127, 127).astype(np.int8)
    return codes, amax / np.float32(127), codes.sum(axis=1, dtype=np.int32)


def dequantize(codes: NDArray[np.int8], scale: F32) -> F32:
    """codes [rows, K], scale [rows, G] -> codes * scale, f32 [rows, K]."""
    return codes.astype(np.float32) * np.repeat(scale, GROUP, axis=1)[:, : codes.shape[1]]


def in_groups(x: NDArray[Any]) -> NDArray[Any]:
    """[rows, K] -> [rows, G, 32], the tail padded with zeros."""
    rows, k = x.shape
    width = -(-k // GROUP) * GROUP
    if width != k:
        x = np.concatenate([x, np.zeros((rows, width - k), x.dtype)], axis=1)
    return x.reshape(rows, width // GROUP, GROUP)
