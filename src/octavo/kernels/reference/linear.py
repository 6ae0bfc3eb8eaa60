"""Reference linears: one function an execution format, written as docs/numerics.md states it.

`dense` over dequantised weights is what the interpreter runs (BLAS, same values to float32 rounding); the others state
the integer arithmetic and judge the native kernels and `dense` itself on small shapes.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.reference.rows import in_groups

F32: TypeAlias = NDArray[np.float32]
I8: TypeAlias = NDArray[np.int8]


def dense(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    """x f32 [M, K], weight f32 [N, K], bias f32 [N] or None -> f32 [M, N]: x · weightᵀ + bias.

    Source: docs/numerics.md, "Linear".
    """
    y = x @ weight.T
    return y if bias is None else np.asarray(y + bias, np.float32)


def exact(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    """As `dense`, each output summed in binary64 and rounded once: the middle of what any order of sums may give."""
    y = np.asarray(x.astype(np.float64) @ weight.astype(np.float64).T, np.float32)
    return y if bias is None else np.asarray(y + bias, np.float32)


def by_token(x: tuple[I8, F32], codes: NDArray[np.int32], scale: F32, bias: F32 | None = None) -> F32:
    """int8t: x = (codes int8 [M, K], scale f32 [M]); weight codes i32 [N, K], scale f32 [N]; bias f32 [N] or None
    -> f32 [M, N].

    i = Σ x·w over all of K exact in int32, y = float(i) * (scale_w * scale_x). Source: docs/numerics.md, "Linear".
    """
    x_codes, x_scale = x
    y = (x_codes.astype(np.int32) @ codes.T).astype(np.float32) * (x_scale[:, None] * scale[None, :])
    return y if bias is None else np.asarray(y + bias, np.float32)


def grouped(
    x: tuple[I8, F32, F32], codes: NDArray[np.int32], scale: F32, *, minimum: F32 | None = None, bias: F32 | None = None
) -> F32:
    """Formats of integers: x = (codes int8 [M, K], scale f32 [M, G], xsum f32 [M, G]); weight codes i32 [N, K], scale
    f32 [N, G]; minimum f32 [N, G], bias f32 [N] -> f32 [M, N]; G groups of 32 along K.

    Per group g ascending, i = Σ x·w exact in int32, acc += i * (scale_w * scale_x), then acc += min * xsum where the
    format has a minimum. int4's stored 0…15 arrives here as code − 8, int4m's as 0…15, an index of int4n, int4x or
    int4e as what its table has there. The product and the sum are rounded apart here, once together (fma) in kernels.
    Source: docs/numerics.md, "Linear".
    """
    x_codes, x_scale, x_sum = x
    a = in_groups(x_codes.astype(np.int32))
    w = in_groups(codes)
    acc = np.zeros((len(a), len(w)), np.float32)
    for g in range(a.shape[1]):
        i = (a[:, g] @ w[:, g].T).astype(np.float32)
        acc = acc + i * (x_scale[:, g, None] * scale[None, :, g])
        if minimum is not None:
            acc = acc + x_sum[:, g, None] * minimum[None, :, g]
    return acc if bias is None else np.asarray(acc + bias, np.float32)
