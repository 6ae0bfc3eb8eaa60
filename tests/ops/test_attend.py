"""Paged attention: values against dense NumPy in float64, bits across variants, chunkings, threads and block places.

The KV arena starts as NaN: a stale number that meets arithmetic shows.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.kernels.reference import attend as attention
from octavo.program.balance import Balance
from tests.ops.native_net import F32, ISAS, Net, bf16

HEADS = [(9, 3, 64), (14, 2, 64), (4, 4, 80), (2, 1, 128), (3, 3, 20), (2, 1, 256), (8, 2, 96), (1, 1, 2)]
"""Query heads, KV heads, width: SmolLM2, Qwen2, and widths that are no multiple of 16 or 32."""
DTYPES = ["f32", "bf16", "int8"]


def as_cached(x: F32, heads: int, dtype: str) -> F32:
    """[length, heads * dim] as numbers of the cache."""
    if dtype != "int8":
        return bf16(x) if dtype == "bf16" else x
    codes = attention.encode_heads(x.reshape(len(x), heads, -1))
    scale = (codes["scale"].astype(np.uint32) << 16).view(np.float32)
    head = (codes["codes"] * scale[..., None]).astype(np.float32)
    return (attention.rotate(head) / attention.rotation_run(head.shape[-1])).reshape(x.shape)


class Case:
    """One sequence's q, k and v."""

    def __init__(self, length: int, heads: tuple[int, int, int], *, seed: int = 0, scale: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.length, (self.q_heads, self.kv_heads, self.dim) = length, heads
        self.q = (rng.standard_normal((length, self.q_heads * self.dim)) * scale).astype(np.float32)
        self.k = rng.standard_normal((length, self.kv_heads * self.dim)).astype(np.float32)
        self.v = rng.standard_normal((length, self.kv_heads * self.dim)).astype(np.float32)

    def dense(self, dtype: str, *, window: int = 0, softcap: float = 0.0) -> NDArray[np.float64]:
        """[length, q_heads * dim], causal, of numbers rounded as the cache holds them."""
        q = bf16(self.q) if dtype == "bf16" else self.q
        k, v = as_cached(self.k, self.kv_heads, dtype), as_cached(self.v, self.kv_heads, dtype)
        q3 = q.reshape(self.length, self.q_heads, self.dim).astype(np.float64)
        k3 = np.repeat(k.reshape(self.length, self.kv_heads, self.dim), self.q_heads // self.kv_heads, axis=1)
        v3 = np.repeat(v.reshape(self.length, self.kv_heads, self.dim), self.q_heads // self.kv_heads, axis=1)
        s = np.einsum("thd,shd->hts", q3, k3.astype(np.float64)) / np.sqrt(self.dim)
        if softcap:
            s = softcap * np.tanh(s / softcap)
        seen = np.tril(np.ones((self.length, self.length), bool))
        if window:
            seen &= ~np.tril(seen, -window)
        s = np.where(seen, s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", p, v3.astype(np.float64)).reshape(self.length, -1)


def make_net(
    case: Case,
    dtype: str,
    *,
    seqs: int = 1,
    out: str = "f32",
    q: str = "f32",
    window: int = 0,
    softcap: float = 0.0,
    balance: F32 | None = None,
    **options: Any,
) -> Net:
    size = options.get("block_size", 16)
    total = case.length + 3
    net = Net(max_tokens=total * seqs, max_len=total, max_seqs=max(seqs, 1), **options)
    widths = (case.q_heads * case.dim, case.kv_heads * case.dim, case.kv_heads * case.dim)
    buffers = [net.buffer(q if i == 0 else "f32", w) for i, w in enumerate(widths)]
    result = net.buffer(out, widths[0])
    group = net.group(
        dtype, kv_heads=case.kv_heads, head_dim=case.dim, num_blocks=seqs * (-(-total // size)) + 1, layers=2,
        window=window,
    )  # fmt: skip
    k, v = net.view(buffers[1], heads=case.kv_heads), net.view(buffers[2], heads=case.kv_heads)
    factors = -1 if balance is None else net.vec(balance)
    q_view, out_view = net.view(buffers[0], heads=case.q_heads), net.view(result)
    net.op("kv_write", *k, *v, group, 1, factors)
    net.op("attend", *q_view, *out_view, group, 1, case.dim**-0.5, softcap, factors)
    return net


def run(net: Net, case: Case, chunks: list[int], *, seed: int = 0) -> F32:
    """The output for the sequence computed in chunks, its blocks scattered.

    With a window, what no later position sees is given up before each chunk: its blocks become NaN and their entries
    the null block, which is NaN as well.
    """
    blocks = -(-case.length // net.block_size)
    table = np.random.default_rng(seed).permutation(np.arange(1, net.kv[0]["num_blocks"]))[:blocks].tolist()
    net.build()
    net.kv_arena.fill(0xFF)
    outs, start = [], 0
    for count in chunks:
        rows = slice(start, start + count)
        window = net.kv[0]["window"]
        for entry in range(max(0, start - window + 1) // net.block_size if window else 0):
            size = net.kv[0]["block_bytes"]
            net.kv_arena.view(table[entry] * size, size)[:] = 0xFF
            table[entry] = 0
        for buffer, x in enumerate((case.q, case.k, case.v)):
            net.write(buffer, x[rows])
        net.forward([count], starts=[start], tables=[table])
        outs.append(net.read(3, count).copy())
        start += count
    assert start == case.length
    return np.concatenate(outs)


def chunked(length: int, size: int) -> list[int]:
    return [min(size, length - i) for i in range(0, length, size)]


def check(got: F32, case: Case, dtype: str, **attention: Any) -> None:
    want = case.dense(dtype, **attention)
    tolerance = {"f32": 2e-5, "bf16": 1.5e-2, "int8": 2e-3}[dtype]
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_values(heads: tuple[int, int, int], dtype: str, isa: str) -> None:
    case = Case(150, heads)
    net = make_net(case, dtype, isa=isa)
    check(run(net, case, [150]), case, dtype)
    net.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
def test_bits(heads: tuple[int, int, int], dtype: str) -> None:
    """Whole, token by token, and in chunks; every variant, both thread counts: one result."""
    case = Case(150, heads, seed=1)
    seen: dict[str, bytes] = {}
    for isa in ISAS:
        for threads in (1, 2):
            net = make_net(case, dtype, isa=isa, threads=threads)
            for size in (150, 130, 64, 7, 1) if isa != "scalar" else (150, 7):
                seen[f"{isa} {threads} {size}"] = run(net, case, chunked(150, size), seed=size).tobytes()
            net.close()
    first = seen["scalar 1 150"]
    assert all(bits == first for bits in seen.values()), [name for name, bits in seen.items() if bits != first]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_block_sizes(block_size: int, dtype: str) -> None:
    case = Case(147, (6, 2, 64), seed=2)
    results = set()
    for isa in ISAS:
        net = make_net(case, dtype, isa=isa, block_size=block_size)
        whole = run(net, case, [147])
        check(whole, case, dtype)
        results |= {whole.tobytes(), run(net, case, chunked(147, 5)).tobytes()}
        net.close()
    assert len(results) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_spans(dtype: str) -> None:
    """Contexts across 512 and 1,024 keys; one decode row is split over spans where threads would idle."""
    case = Case(1100, (3, 1, 64), seed=3, scale=2.0)
    results: dict[str, bytes] = {}
    best = ISAS[-1]
    for threads in (1, 2, 3):
        net = make_net(case, dtype, isa=best, threads=threads)
        whole = run(net, case, [1100])
        check(whole, case, dtype)
        results[f"whole {threads}"] = whole.tobytes()
        results[f"130 {threads}"] = run(net, case, chunked(1100, 130)).tobytes()
        results[f"decode {threads}"] = run(net, case, [500, *[1] * 30, 480, *[1] * 30, 30, *[1] * 30]).tobytes()
        net.close()
    net = make_net(case, dtype, isa="scalar")
    results["scalar"] = run(net, case, [1070, *[1] * 30]).tobytes()
    net.close()
    assert len(set(results.values())) == 1, [k for k, v in results.items() if v != results["scalar"]]


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_neighbours(threads: int, dtype: str) -> None:
    """A batch of prefills and decodes at once gives each sequence what it gets alone."""
    case = Case(300, (9, 3, 64), seed=4)
    alone = run(net := make_net(case, dtype), case, [300])
    net.close()
    net = make_net(case, dtype, seqs=4, threads=threads)
    per = -(-303 // 16)
    tables = [list(range(1 + b * per, 1 + (b + 1) * per)) for b in range(4)]
    done = [0, 0, 0, 0]
    for counts in ([200, 3, 64, 130], [1, 150, 1, 1], [7, 1, 200, 100]):
        for buffer, x in enumerate((case.q, case.k, case.v)):
            net.write(buffer, np.concatenate([x[d : d + c] for d, c in zip(done, counts, strict=True)]))
        net.forward(counts, starts=done, tables=tables)
        got, at = net.read(3, sum(counts)), 0
        for b, count in enumerate(counts):
            assert (got[at : at + count] == alone[done[b] : done[b] + count]).all(), (b, count)
            at, done[b] = at + count, done[b] + count
    net.close()


SHARING = [(0, 1024, 1030), (1, 512, 700), (0, 1024, 1100), (1, 512, 513), (0, 512, 900), (0, 1024, 1025), (2, 0, 600)]
"""(family, tokens that its sequences have in common, length): who is in one family reads the same blocks."""


@functools.cache
def families_and_members(dtype: str) -> tuple[list[Case], list[Case], list[F32]]:
    """Prefixes, the sequences of SHARING, and the last row that each gets alone (in every variant: test_bits)."""
    heads = (6, 2, 32)
    families = [Case(1024, heads, seed=20 + f) for f in range(3)]
    cases, alone = [], []
    for b, (family, shared, length) in enumerate(SHARING):
        case = Case(length, heads, seed=30 + b)
        for mine, common in zip(_qkv(case), _qkv(families[family]), strict=True):
            mine[:shared] = common[:shared]
        net = make_net(case, dtype, softcap=15.0)
        alone.append(run(net, case, [length - 1, 1])[-1])
        net.close()
        cases.append(case)
    return families, cases, alone


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 64])
def test_sequences_that_share_blocks_are_rows_of_one_item(block_size: int, dtype: str, isa: str) -> None:
    """And get what each gets alone, bit for bit, in a step with a stranger and a prefill."""
    families, cases, alone = families_and_members(dtype)
    heads = (6, 2, 32)
    for threads in (1, 2) if isa != "scalar" else (2,):
        net = make_net(Case(1100, heads), dtype, seqs=10, isa=isa, threads=threads, block_size=block_size, softcap=15.0)
        net.build()
        net.kv_arena.fill(0xFF)
        free = np.random.default_rng(7).permutation(np.arange(1, net.kv[0]["num_blocks"])).tolist()

        def compute(case: Case, first: int, last: int, table: list[int], net: Net = net) -> None:
            if first < last:
                for buffer, x in enumerate(_qkv(case)):
                    net.write(buffer, x[first:last])
                net.forward([last - first], starts=[first], tables=[table])

        known = [[free.pop() for _ in range(1024 // block_size)] for _ in families]
        for case, table in zip(families, known, strict=True):
            compute(case, 0, 1024, table)
        tables = []
        for case, (family, shared, length) in zip(cases, SHARING, strict=True):
            own = [free.pop() for _ in range(-(-(length - shared) // block_size))]
            tables.append([*known[family][: shared // block_size], *own])
            compute(case, shared, length - 1, tables[-1])
        newcomer = Case(40, heads, seed=50)
        for buffer, xs in enumerate(zip(*(_qkv(case) for case in cases), strict=True)):
            rows = np.concatenate([x[-1:] for x in xs])
            net.write(buffer, np.concatenate([rows[:3], _qkv(newcomer)[buffer], rows[3:]]))
        order = [*tables[:3], [free.pop() for _ in range(-(-40 // block_size))], *tables[3:]]
        starts = [c.length - 1 for c in cases]
        net.forward([1, 1, 1, 40, 1, 1, 1, 1], starts=[*starts[:3], 0, *starts[3:]], tables=order)
        got = net.read(3, 47)
        assert net.exe.spans_saved == 2 * (2 * 2 + 1)  # KV heads x (two spans for two more, one for one more)
        for b, want in enumerate(alone):
            assert (got[b if b < 3 else b + 40] == want).all(), (threads, b)
        net.close()


def _qkv(case: Case) -> tuple[F32, F32, F32]:
    return case.q, case.k, case.v


def test_what_attends_nothing_plans_nothing() -> None:
    """A segment without an attend (the head over tiles of rows) leaves the last plan as it was."""
    case = Case(600, (2, 1, 32))
    net = make_net(case, "bf16", seqs=2)
    net.segment("layers", 0, 2)
    net.op("add", *net.view(0), *net.view(0), *net.view(0), 1.0)
    net.segment("head", 2)
    one = list(range(1, 39))
    net.forward([1, 1], starts=[599, 599], tables=[one, one], segment="layers")
    assert net.exe.spans_saved == 1
    net.forward([1, 1], starts=[599, 599], tables=[one, one[::-1]], segment="head")
    assert net.exe.spans_saved == 1
    net.forward([1, 1], starts=[599, 599], tables=[one, one[::-1]], segment="layers")
    assert net.exe.spans_saved == 0
    net.close()


WINDOWS = [1, 2, 5, 16, 31, 100, 128, 129, 300, 512, 513]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_windows(window: int, dtype: str) -> None:
    """Values, and one result in every chunking, thread count and variant, while the blocks behind turn to NaN."""
    case = Case(700, (4, 2, 64), seed=window)
    results: dict[str, bytes] = {}
    for isa in ISAS:
        for threads in (1, 3):
            net = make_net(case, dtype, isa=isa, threads=threads, window=window)
            if isa == "scalar" and threads == 3:
                net.close()
                continue
            whole = run(net, case, [700])
            check(whole, case, dtype, window=window)
            results[f"{isa} {threads} whole"] = whole.tobytes()
            for size in (130, 64, 7) if isa != "scalar" else (130,):
                results[f"{isa} {threads} {size}"] = run(net, case, chunked(700, size), seed=size).tobytes()
            decodes = [500, *[1] * 20, 120, *[1] * 60]
            results[f"{isa} {threads} decode"] = run(net, case, decodes).tobytes()
            net.close()
    first = results["scalar 1 whole"]
    assert all(bits == first for bits in results.values()), [k for k, bits in results.items() if bits != first]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 1, 256), (4, 4, 80), (16, 1, 64)])
def test_windows_of_other_shapes(heads: tuple[int, int, int], dtype: str, block_size: int) -> None:
    case = Case(200, heads, seed=8)
    results = set()
    for isa in ISAS:
        net = make_net(case, dtype, isa=isa, threads=2, block_size=block_size, window=37)
        whole = run(net, case, [200])
        check(whole, case, dtype, window=37)
        results |= {whole.tobytes(), *(run(net, case, chunked(200, n)).tobytes() for n in (1, 9, 130))}
        net.close()
    assert len(results) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 40])
def test_softcap(window: int, dtype: str) -> None:
    """Scores from far below the cap to far beyond it."""
    case = Case(150, (4, 2, 64), seed=9, scale=30.0)
    results = set()
    for isa in ISAS:
        net = make_net(case, dtype, isa=isa, threads=2, window=window, softcap=20.0)
        whole = run(net, case, [150])
        check(whole, case, dtype, window=window, softcap=20.0)
        results |= {whole.tobytes(), *(run(net, case, chunked(150, n)).tobytes() for n in (1, 70))}
        net.close()
    assert len(results) == 1


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_large_scores(dtype: str) -> None:
    """Scores far apart: weights underflow to 0 and earlier sums are scaled away."""
    case = Case(200, (2, 2, 32), seed=6, scale=60.0)
    got = {isa: run(make_net(case, dtype, isa=isa), case, chunked(200, 33)) for isa in ISAS}
    if dtype == "f32":
        check(got["scalar"], case, dtype)
    assert all((x == got["scalar"]).all() for x in got.values())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(3, 1, 64), (4, 2, 20)])
def test_int8_cache_is_the_references(heads: tuple[int, int, int], isa: str) -> None:
    """Every code and scale in the cache, with heads of zeros, of very small and very large numbers, and not finite."""
    case = Case(40, heads, seed=10)
    case.k[3], case.v[4] = 0, 1e-35
    case.k[5] *= 1e30
    case.v[6, 0], case.k[7, 1] = np.inf, np.nan
    net = make_net(case, "int8", isa=isa, block_size=8)
    run(net, case, [33, 7])
    size, dim, kv_heads = 8, case.dim, case.kv_heads
    table = np.random.default_rng(0).permutation(np.arange(1, net.kv[0]["num_blocks"]))[:5]
    raw = net.kv_arena.view(0, net.kv_arena.nbytes)[: net.kv[0]["num_blocks"] * net.kv[0]["block_bytes"]]
    layer = raw.reshape(net.kv[0]["num_blocks"], 2, -1)[table, 1]
    half = size * kv_heads * dim
    k = layer[:, :half].view(np.int8).reshape(5, kv_heads, dim // 2, size, 2).transpose(0, 3, 1, 2, 4)
    v = layer[:, half : 2 * half].view(np.int8).reshape(5, kv_heads, size // 2, dim, 2).transpose(0, 2, 4, 1, 3)
    scales = np.ascontiguousarray(layer[:, 2 * half :]).view(np.uint16).reshape(5, kv_heads, 2, size)
    for i, (x, codes) in enumerate(((case.k, k), (case.v, v))):
        want = attention.encode_heads(x.reshape(40, kv_heads, dim))
        assert (codes.reshape(40, kv_heads, dim) == want["codes"]).all()
        assert (scales[:, :, i].transpose(0, 2, 1).reshape(40, kv_heads) == want["scale"]).all()
    net.close()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("balanced", [False, True])
def test_int8_values_are_the_references(balanced: bool, isa: str) -> None:
    """The reference rounds q and the weights as the kernels do, so nothing but orders of sums of p is between them."""
    case = Case(300, (6, 2, 64), seed=11)
    factors = np.exp2(np.random.default_rng(12).integers(0, 5, (2, 64))).astype(np.float32)
    balance = factors if balanced else None
    net = make_net(case, "int8", window=170, softcap=8.0, balance=balance, isa=isa)
    got = run(net, case, [300]).reshape(300, 6, 64)
    net.close()
    cache = np.zeros((20, 2, 2, 16), attention.code_dtype(64))
    q, k, v = case.q.reshape(300, 6, 64), case.k.reshape(300, 2, 64), case.v.reshape(300, 2, 64)
    if balanced:
        q, k = q * np.repeat(factors, 3, axis=0), k / factors
    attention.kv_write(cache, k, v, np.arange(16, 316))
    table = np.arange(1, 20, dtype=np.int32)
    want = attention.attend(q, cache, table, 0, 0.125, window=170, softcap=8.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4 * np.abs(want).max())


def test_a_balance_gives_quiet_dims_their_resolution_back() -> None:
    """What it is for: a few loud dims, the same in every key, would leave the others a few codes."""
    case = Case(200, (2, 1, 64), seed=13)
    case.k[:, 5] += 300
    case.k[:, 37] -= 200
    case.q[:, [5, 37, 69, 101]] *= 0.01
    factors = Balance(heads=1, rotary=64).of(np.where(np.arange(64) == 5, 300, 0).astype(np.float32))
    want = case.dense("f32")
    error = []
    for balance in (None, factors):
        net = make_net(case, "int8", balance=balance)
        error.append(np.abs(run(net, case, [200]) - want).max())
        net.close()
    assert error[1] < error[0] / 4


def test_a_balance_is_for_codes_only() -> None:
    case = Case(20, (2, 1, 64), seed=14)
    with pytest.raises(ValueError, match="a balance of keys that are no codes"):
        make_net(case, "bf16", balance=np.ones(64, np.float32)).build()
