"""Reference attention: paging, masking, grouped heads, rounding, stale memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.kernels.reference import attend as attention
from octavo.kernels.reference.rows import round_bf16

RNG = np.random.default_rng(23)


def normal(*shape: int) -> attention.F32:
    return RNG.standard_normal(shape).astype(np.float32)


def filled(dtype: Any, k: attention.F32, v: attention.F32, block: int) -> tuple[NDArray[Any], attention.I32]:
    """A NaN-poisoned cache with k, v [length, kv_heads, d] in scattered blocks, and the block table."""
    length, kv_heads, d = k.shape
    blocks = -(-length // block)
    cache = np.full((blocks + 4, 2, kv_heads, block, d), np.nan, dtype)
    table = RNG.permutation(np.arange(1, blocks + 4))[:blocks].astype(np.int32)
    position = np.arange(length)
    attention.kv_write(cache, k, v, table[position // block].astype(np.int64) * block + position % block)
    return cache, table


def naive(q: attention.F32, k: attention.F32, v: attention.F32, start: int, scale: float) -> NDArray[np.float64]:
    out = np.zeros(q.shape)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h * k.shape[1] // q.shape[1]
            s = (k[: start + t + 1, g].astype(np.float64) @ q[t, h].astype(np.float64)) * scale
            p = np.exp(s - s.max())
            out[t, h] = p / p.sum() @ v[: start + t + 1, g].astype(np.float64)
    return out


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 16), (3, 3, 20), (9, 3, 64), (2, 1, 128)])
@pytest.mark.parametrize(("length", "count", "block"), [(1, 1, 16), (40, 40, 8), (130, 7, 16), (520, 3, 64)])
def test_float32_equals_naive(heads: int, kv_heads: int, d: int, length: int, count: int, block: int) -> None:
    q, k, v = normal(count, heads, d), normal(length, kv_heads, d), normal(length, kv_heads, d)
    cache, table = filled(np.float32, k, v, block)
    got = attention.attend(q, cache, table, length - count, d**-0.5)
    assert np.abs(got - naive(q, k, v, length - count, d**-0.5)).max() < 1e-5


def test_bfloat16_rounds_q_k_v_and_p() -> None:
    q, k, v = normal(5, 4, 32), normal(77, 2, 32), normal(77, 2, 32)
    cache, table = filled(ml_dtypes.bfloat16, k, v, 16)
    got = attention.attend(q, cache, table, 72, 32**-0.5)
    want = naive(*(round_bf16(x) for x in (q, k, v)), start=72, scale=32**-0.5)
    error = np.abs(got - want).max()
    assert 0 < error < 6e-3  # P carries 8 bits


def test_int8_codes_of_a_head() -> None:
    """Within half a step of the number, the largest at the end of the range, and what has no scale."""
    x = normal(4, 2, 24) * 3
    x[1, 0], x[2, 1, 3], x[3, 0, 5] = 0, np.inf, np.nan
    heads = attention.encode_heads(x)
    scale = (heads["scale"].astype(np.uint32) << 16).view(np.float32)[..., None]
    fine = np.isfinite(scale[..., 0])
    assert fine.sum() == 6
    assert (np.abs(heads["codes"] * scale - attention.rotate(x))[fine] <= scale[fine] * 0.501).all()
    assert (np.abs(heads["codes"].astype(int)).max(-1)[fine & (scale[..., 0] > 0)] >= 126).all()
    assert (heads["codes"][~fine] == 0).all()
    assert (heads["codes"][1, 0] == 0).all()
    assert scale[1, 0] == 0


@pytest.mark.parametrize("dim", [2, 20, 64, 96])
def test_rotating_twice_gives_the_run_times_as_much(dim: int) -> None:
    x = RNG.integers(-100, 100, (3, dim)).astype(np.float32)
    run = attention.rotation_run(dim)
    assert (attention.rotate(attention.rotate(x)) == run * x).all()
    first = np.eye(dim, dtype=np.float32)[0]
    assert (attention.rotate(first)[:run] == 1).all()


def test_int8_equals_naive_over_its_own_numbers() -> None:
    q, k, v = normal(5, 4, 32), normal(300, 2, 32), normal(300, 2, 32)
    k[:, :, 3] += 30  # a loud channel, as biases make it
    records = np.zeros((30, 2, 2, 16), attention.code_dtype(32)).view(np.uint8)
    records.fill(0xFF)
    cache = records.view(attention.code_dtype(32)).reshape(30, 2, 2, 16)
    table = RNG.permutation(np.arange(1, 30))[:19].astype(np.int32)
    position = np.arange(300)
    attention.kv_write(cache, k, v, table[position // 16].astype(np.int64) * 16 + position % 16)
    got = attention.attend(q, cache, table, 295, 32**-0.5)
    codes_k, codes_v, k_scale, v_scale = attention.paged(cache, table, 300)
    k, v = ((c * s[..., None]).transpose(1, 0, 2) for c, s in ((codes_k, k_scale), (codes_v, v_scale)))
    k, v = attention.rotate(k) / 32, attention.rotate(v) / 32
    error = np.abs(got - naive(q, k, v, 295, 32**-0.5)).max()
    assert 0 < error < 2e-3


def test_one_chunk_or_many() -> None:
    q, k, v = normal(50, 4, 16), normal(50, 2, 16), normal(50, 2, 16)
    cache, table = filled(np.float32, k, v, 16)
    whole = attention.attend(q, cache, table, 0, 0.25)
    parts = [attention.attend(q[i : i + 7], cache, table, i, 0.25) for i in range(0, 50, 7)]
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-6


def test_the_future_and_stale_blocks_weigh_nothing() -> None:
    q, k, v = normal(1, 2, 16), normal(20, 1, 16), normal(20, 1, 16)
    cache, table = filled(np.float32, k, v, 16)
    got = attention.attend(q, cache, table, 9, 0.25)
    k[10:] = np.inf
    v[10:] = np.nan
    poisoned, other = filled(np.float32, k, v, 16)
    assert (attention.attend(q, poisoned, other, 9, 0.25) == got).all()


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 40, 500])
def test_windows_and_caps(window: int, softcap: float) -> None:
    """Against a plain loop; what is behind the window of the first row is NaN, its table entries null."""
    length, count, start = 90, 30, 60
    q, k, v = normal(count, 4, 16) * 4, normal(length, 2, 16), normal(length, 2, 16)
    cache, table = filled(np.float32, k, v, 8)
    gone = max(0, start - window + 1) // 8
    cache[table[:gone]] = np.nan
    cache[0] = np.nan
    table[:gone] = 0
    got = attention.attend(q, cache, table, start, 0.25, window=window, softcap=softcap)
    for t, h in np.ndindex(count, 4):
        p = start + t
        seen = slice(max(0, p - window + 1), p + 1)
        s = (k[seen, h // 2].astype(np.float64) @ q[t, h].astype(np.float64)) * 0.25
        s = softcap * np.tanh(s / softcap) if softcap else s
        weights = np.exp(s - s.max())
        assert np.abs(got[t, h] - weights / weights.sum() @ v[seen, h // 2]).max() < 2e-5


def test_negative_slots_are_dropped() -> None:
    cache = np.zeros((2, 2, 1, 8, 4), np.float32)
    attention.kv_write(cache, np.ones((2, 1, 4), np.float32), np.ones((2, 1, 4), np.float32), np.asarray([-1, 9]))
    assert cache.sum() == 8
    assert (cache[1, :, 0, 1] == 1).all()
