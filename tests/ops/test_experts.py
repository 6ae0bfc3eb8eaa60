"""Mixture of experts: values against float64; bits of every variant, thread count and company against scalar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.ops.linear_cases import FORMATS, packed, rows_for, source_of
from tests.ops.native_net import CODE_ERROR, ISAS, Net, native

WIDTHS = {"f32": 40, "bf16": 33}
CASES = [(fmt, WIDTHS.get(fmt, 64 if source_of(fmt, 64) else 256)) for fmt in FORMATS]
"""Execution format and the width it is tried with."""


def softmax_choice(x: Any, k: int, norm: bool, factor: float) -> tuple[Any, Any]:
    x = np.asarray(x, np.float64)
    ids = np.argsort(-x, axis=1, kind="stable")[:, :k]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    w = np.take_along_axis(e, ids, axis=1)
    return ids, factor * w / (w if norm else e).sum(axis=1, keepdims=True)


def routed(x: NDArray[np.float32], k: int, *, norm: bool, factor: float, isa: str, threads: int) -> tuple[Any, Any]:
    net = Net(isa=isa, threads=threads, max_tokens=len(x), max_len=512)
    a, ids, w = net.buffer("f32", x.shape[1]), net.buffer("i32", k), net.buffer("f32", k)
    net.op("route", *net.view(a), ids, w, int(norm), factor)
    net.write(a, x)
    net.forward([len(x)])
    found = net.read(ids, len(x)).astype(int), net.read(w, len(x))
    net.close()
    return found


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("experts", "k"), [(2, 1), (4, 2), (8, 2), (8, 8), (33, 4), (64, 8), (128, 8)])
def test_route(experts: int, k: int, norm: bool) -> None:
    x = (np.random.default_rng(experts + k).standard_normal((37, experts)) * 4).astype(np.float32)
    x[3] = 1.5  # all tie: the lowest win, in order
    x[4, 1::2] = x[4, ::2][: len(x[4, 1::2])]
    x[5] = -200
    x[5, -1] = 200
    want_ids, want = softmax_choice(x, k, norm, 2.5)
    scalar = routed(x, k, norm=norm, factor=2.5, isa="scalar", threads=1)
    assert (scalar[0] == want_ids).all()
    np.testing.assert_allclose(scalar[1], want, rtol=5e-6, atol=1e-12)
    for isa in ISAS:
        for threads in (1, 2):
            got = routed(x, k, norm=norm, factor=2.5, isa=isa, threads=threads)
            assert (got[0] == scalar[0]).all()
            assert got[1].tobytes() == scalar[1].tobytes()


def test_route_of_numbers_that_are_none() -> None:
    """A token whose logits are not finite harms itself alone, and its ids stay experts."""
    x = np.random.default_rng(0).standard_normal((4, 20)).astype(np.float32)
    x[1] = np.nan
    x[2, 7] = np.inf
    for isa in ISAS:
        ids, w = routed(x, 5, norm=False, factor=1.0, isa=isa, threads=1)
        assert all(len(set(row)) == 5 and min(row) >= 0 and max(row) < 20 for row in ids.tolist())
        assert np.isfinite(w[[0, 3]]).all()
        assert np.isnan(w[1]).all()
        assert not np.isfinite(w[2]).all()


class Experts:
    """E random matrices of one format behind one another, as lowering places them."""

    def __init__(self, fmt: str, experts: int, n: int, k: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.format, self.n, self.k, self.experts = fmt, n, k, experts
        each = [packed(fmt, n, k, rng) for _ in range(experts)]
        self.numbers = np.stack([one.numbers for one in each])
        size = len(each[0].panels)
        self.arena = native.Arena(size * experts, False)
        for e, one in enumerate(each):
            self.arena.view(e * size, size)[:] = one.panels

    def run(
        self,
        x: NDArray[np.float32],
        ids: NDArray[np.int64],
        *,
        per_token: bool,
        isa: str,
        threads: int,
        out: str = "f32",
    ) -> tuple[Any, bytes, Any]:
        """x through a cast to the format's rows: (values, bits) [T * k, n], and the numbers multiplied."""
        tokens, k = ids.shape
        net = Net(isa=isa, threads=threads, max_tokens=tokens, max_len=512)
        times = 1 if per_token else k
        a, b = net.buffer("f32", self.k, times=times), net.buffer(rows_for(self.format), self.k, times=times)
        chosen, y = net.buffer("i32", k), net.buffer(out, self.n, times=k)
        net.weights.append((self.format, self.n, self.k, self.arena.address))
        net.op("cast", *net.view(a), *net.view(b))
        net.op("expert_linear", b, chosen, y, 0, self.experts)
        net.write(a, x)
        net.write(chosen, ids)
        net.forward([tokens])
        found = net.read(y, tokens * k), net.bits(y, tokens * k), net.read(b, tokens * times)
        net.close()
        return found


def random_ids(rng: np.random.Generator, tokens: int, experts: int, k: int) -> NDArray[np.int64]:
    return np.argsort(rng.random((tokens, experts)), axis=1)[:, :k]


@pytest.mark.parametrize(("fmt", "width"), CASES)
@pytest.mark.parametrize(
    ("experts", "k", "tokens", "n", "per_token"),
    [(2, 1, 1, 16, True), (4, 2, 7, 20, True), (8, 2, 120, 50, False), (64, 8, 1, 300, True), (128, 8, 33, 33, False)],
)
def test_expert_linear(fmt: str, width: int, experts: int, k: int, tokens: int, n: int, per_token: bool) -> None:
    weights = Experts(fmt, experts, n, width)
    rng = np.random.default_rng(tokens)
    ids = random_ids(rng, tokens, experts, k)
    x = rng.standard_normal((tokens if per_token else tokens * k, width)).astype(np.float32)
    got, bits, multiplied = weights.run(x, ids, per_token=per_token, isa="scalar", threads=1)
    rows = np.repeat(multiplied, k, axis=0) if per_token else multiplied
    want = np.einsum("rk,rnk->rn", rows.astype(np.float64), weights.numbers[ids.reshape(-1)])
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), rtol=0)
    for isa in ISAS:
        for threads in (1, 2):
            assert weights.run(x, ids, per_token=per_token, isa=isa, threads=threads)[1] == bits, (isa, threads)


@pytest.mark.parametrize(("fmt", "width"), CASES)
def test_company_changes_nothing(fmt: str, width: int) -> None:
    """Each token alone, all shuffled, all on one expert: the same bits; experts without rows are no matter."""
    experts, k, tokens, n = 6, 2, 150, 40
    weights = Experts(fmt, experts, n, width)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((tokens, width)).astype(np.float32)
    some = random_ids(rng, tokens, 3, k) + 1  # experts 0, 4 and 5 stay without rows
    one = np.tile([[5, 2]], (tokens, 1))  # two experts have every row
    for ids in (some, one):
        for isa in ISAS:
            together = weights.run(x, ids, per_token=True, isa=isa, threads=2)[0]
            order = rng.permutation(tokens)
            shuffled = weights.run(x[order], ids[order], per_token=True, isa=isa, threads=2)[0]
            assert (shuffled.reshape(tokens, k, n) == together.reshape(tokens, k, n)[order]).all()
            for t in (0, 77):
                alone = weights.run(x[t : t + 1], ids[t : t + 1], per_token=True, isa=isa, threads=1)[0]
                assert (alone == together[t * k : (t + 1) * k]).all()


@pytest.mark.parametrize("tokens", [1, 300])
def test_expert_linear_into_bf16(tokens: int) -> None:
    weights = Experts("int8", 4, 50, 64)
    rng = np.random.default_rng(2)
    ids, x = random_ids(rng, tokens, 4, 2), rng.standard_normal((tokens, 64)).astype(np.float32)
    whole = weights.run(x, ids, per_token=True, isa="scalar", threads=1)[0]
    for isa in ISAS:
        got = weights.run(x, ids, per_token=True, isa=isa, threads=2, out="bf16")[0]
        np.testing.assert_allclose(got, whole, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("out", ["f32", "bf16", "q8", "q8t"])
@pytest.mark.parametrize(("k", "width"), [(1, 16), (2, 33), (8, 100)])
def test_combine(k: int, width: int, out: str) -> None:
    tokens = 9
    rng = np.random.default_rng(k)
    x = rng.standard_normal((tokens * k, width)).astype(np.float32)
    w = rng.random((tokens, k)).astype(np.float32)
    seen = set()
    for isa in ISAS:
        for threads in (1, 2):
            net = Net(isa=isa, threads=threads, max_tokens=tokens)
            a, b, y = net.buffer("f32", width, times=k), net.buffer("f32", k), net.buffer(out, width)
            net.op("combine", *net.view(a), b, *net.view(y))
            net.write(a, x)
            net.write(b, w)
            net.forward([tokens])
            got = net.read(y, tokens)
            seen.add(net.bits(y, tokens))
            net.close()
    want = np.einsum("tk,tkn->tn", w.astype(np.float64), x.reshape(tokens, k, width))
    worst = {"f32": 1e-6, "bf16": 2**-8, **CODE_ERROR}[out] * np.abs(want).max()
    assert np.abs(got - want).max() <= worst
    assert len(seen) == 1


def test_specs_are_checked() -> None:
    def refuse(*op: Any) -> None:
        net = Net()
        for dtype, width, times in (("f32", 16, 1), ("i32", 2, 1), ("f32", 16, 2), ("f32", 2, 1), ("f32", 16, 3)):
            net.buffer(dtype, width, times=times)
        net.weights.append(("f32", 16, 16, 64))
        net.op(*op)
        with pytest.raises(ValueError, match="executable spec"):
            net.build()

    x = (0, 0, 1, 16, 16)
    refuse("route", *x, 3, 3, 0, 1.0)  # ids are i32
    refuse("route", *x, 1, 2, 0, 1.0)  # weights with as many rows as tokens
    refuse("expert_linear", 0, 1, 0, 0, 4)  # k rows a token come out
    refuse("expert_linear", 4, 1, 2, 0, 4)  # 1 or k go in
    refuse("expert_linear", 0, 1, 2, 0, 1)  # more chosen than there are
    refuse("combine", *(4, 0, 1, 16, 16), 3, *x)
    refuse("combine", *(2, 0, 1, 16, 16), 1, *x)
    refuse("add", *x, *x, *(2, 0, 1, 16, 16))
    refuse("cast", *x, *(1, 0, 1, 2, 2))
