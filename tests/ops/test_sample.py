"""Native sampling: tokens against the reference's float64, equality across variants, invariances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.kernels.reference import sample as reference
from tests.ops.native_net import F32, ISAS, Net, native

VOCAB = 5000
NEUTRAL: dict[str, Any] = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0, "frequency": 0.0, "repetition": 1.0,
    "seed": 0, "num_prompt": 0, "min_tokens": 0,
}  # fmt: skip
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 40, "temperature": 0.8},
    {"top_k": VOCAB + 7},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "temperature": 1.3},
    {"repetition": 1.3},
    {"presence": 0.8, "frequency": 0.4},
    {"repetition": 0.7, "presence": -1.0, "temperature": 0.0},
    {"min_tokens": 100, "temperature": 0.0},
]


class Logits:
    """A net whose logits are what the test writes: an identity head over rows of width vocab would be as wide, so the
    head op runs once for its place and the rows are then overwritten."""

    def __init__(self, *, isa: str, threads: int = 1, rows: int = 16, vocab: int = VOCAB, max_len: int = 64) -> None:
        self.rows, self.max_len, self.vocab = rows, max_len, vocab
        net = Net(isa=isa, threads=threads, max_tokens=rows, max_rows=rows, max_seqs=rows, max_len=max_len, vocab=vocab)
        w = net.matrix("f32", "f32", vocab, 1, np.ones(vocab, np.float32).view(np.uint8))
        hidden, self.out = net.buffer("f32", 1, "R"), net.buffer("f32", vocab, "R")
        net.op("head", hidden, self.out, w)
        self.net = net
        self.exe = net.build()

    def set(self, slot: int, known: NDArray[np.int32], params: dict[str, Any]) -> None:
        for name, value in {**NEUTRAL, **params}.items():
            self.exe.columns[name][slot] = value
        self.exe.tokens[slot, : len(known)] = known
        self.exe.set_bias(slot, np.zeros(0, np.int32), np.zeros(0, np.float32))
        self.exe.set_stops(slot, np.array([3, 11, 4999], np.int32))

    def sample(self, logits: F32, known: list[NDArray[np.int32]]) -> list[int]:
        n = len(logits)
        self.net.forward([1] * n, starts=[len(k) - 1 for k in known], rows=[1] * n)
        self.net.write(self.out, logits)
        self.exe.sample(n)
        found: list[int] = self.exe.sampled[:n].tolist()
        for slot, k in enumerate(known):
            assert self.exe.tokens[slot, len(k)] == found[slot]
        return found


def draw_logits(rng: np.random.Generator, n: int, vocab: int = VOCAB) -> F32:
    return (rng.standard_normal((n, vocab)) * 3).astype(np.float32)


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_against_reference(setting: int) -> None:
    rng = np.random.default_rng(setting)
    n = 16
    logits = draw_logits(rng, n)
    known = [rng.integers(0, VOCAB if i % 2 else 40, int(rng.integers(1, 60))).astype(np.int32) for i in range(n)]
    params = [
        {**NEUTRAL, **SETTINGS[setting], "seed": int(rng.integers(0, 2**63)), "num_prompt": len(k) // 2} for k in known
    ]
    got: dict[str, list[int]] = {}
    for isa in ISAS:
        for threads in (1, 2):
            net = Logits(isa=isa, threads=threads)
            for slot in range(n):
                net.set(slot, known[slot], params[slot])
            got[f"{isa} {threads}"] = net.sample(logits, known)
            net.net.close()
    assert len({tuple(x) for x in got.values()}) == 1
    empty = (np.zeros(0, np.int32), np.zeros(0, np.float32))
    want = [
        reference.sample(x, reference.RowParams(**p, bias=empty, stops=np.array([3, 11, 4999], np.int32)), k)
        for x, p, k in zip(logits, params, known, strict=True)
    ]
    # float32 weights may move a border by a rounding; sixteen rows should hardly ever meet one.
    assert sum(a != b for a, b in zip(got["scalar 1"], want, strict=True)) == 0


def falling(n: int) -> F32:
    """All different, the larger the lower the id, and so close that at temperature 100 their weights share a binade."""
    return np.linspace(1, 0, n, dtype=np.float32)


BORDERS: dict[str, tuple[float, Callable[[int], F32]]] = {
    "flat": (1, lambda n: np.full(n, 3, np.float32)),
    "hot": (100, falling),
    "cold": (0.1, falling),
    "ties": (100, lambda n: np.repeat(np.array([9, 5, 1], np.float32), [n // 5, n - 2 * (n // 5), n // 5])),
    "ties of few": (1, lambda n: np.repeat(np.array([9, 5, 1], np.float32), [10, 20, n - 30])),
}


LOWEST, HIGHEST = 411765, 956808
"""Seeds whose noise at position 1 is next to 0, and next to 1: they draw the first and the last id that is kept."""


@pytest.mark.parametrize("vocab", [VOCAB, 262_144])
@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("name", BORDERS)
def test_top_p_border(name: str, rising: bool, vocab: int) -> None:
    """The last id that top_p keeps of logits that fall with the id, the first of those that rise."""
    temperature, make = BORDERS[name]
    x = make(vocab)[:: -1 if rising else 1].copy()
    seed = LOWEST if rising else HIGHEST
    assert abs(reference.uniform(seed, 1) - (not rising)) < 1e-5
    known, nothing = [np.array([1], np.int32)], np.zeros(0, np.int32)
    for top_p in (0.2, 0.5, 0.9, 0.97):
        params = {**NEUTRAL, "temperature": temperature, "top_p": top_p, "seed": seed}
        row = reference.RowParams(**params, bias=(nothing, np.zeros(0, np.float32)), stops=nothing)
        kept = np.flatnonzero(reference.kept(x.astype(np.float64) / temperature, row))
        for isa in ISAS:
            net = Logits(isa=isa, rows=1, vocab=vocab, max_len=8)
            net.set(0, known[0], params)
            found = net.sample(x[None], known)[0]
            net.net.close()
            # Of a sum over so many, float32 weights may miss a few ids' worth.
            assert abs(found - kept[0 if rising else -1]) <= max(1, vocab // 40_000), (isa, top_p)


def test_distribution() -> None:
    """Frequencies over many positions' noise follow the softmax."""
    vocab, draws = 40, 4000
    rng = np.random.default_rng(0)
    x = rng.standard_normal(vocab).astype(np.float32) * 1.5
    net = Logits(isa=ISAS[-1], vocab=vocab, max_len=8)
    counts = np.zeros(vocab)
    known = [np.array([1], np.int32)] * 16
    for start in range(0, draws, 16):
        for slot in range(16):
            net.set(slot, known[slot], {"seed": start + slot})
        for token in net.sample(np.tile(x, (16, 1)), known):
            counts[token] += 1
    p = np.exp(x - x.max())
    p /= p.sum()
    expected = p * counts.sum()
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < vocab + 5 * np.sqrt(2 * vocab), chi2
    net.net.close()


def test_noise_depends_on_seed_and_position_only() -> None:
    rng = np.random.default_rng(1)
    x = draw_logits(rng, 1)[0]
    net = Logits(isa=ISAS[-1])
    known = [np.arange(1, 2 + i % 4, dtype=np.int32) for i in range(16)]
    for slot in range(16):
        net.set(slot, known[slot], {"seed": 77 + slot // 8})
    got = net.sample(np.tile(x, (16, 1)), known)
    for slot in range(16):
        assert got[slot] == got[slot // 8 * 8 + slot % 4]
    assert len(set(got)) > 4
    net.net.close()


def test_bias_and_ties() -> None:
    net = Logits(isa=ISAS[-1])
    known = [np.array([1], np.int32)] * 2
    for slot in range(2):
        net.set(slot, known[slot], {"temperature": 0.0})
    x = np.zeros((2, VOCAB), np.float32)
    x[:, [77, 4000]] = 5  # a tie goes to the lower id
    net.exe.set_bias(1, np.array([4000], np.int32), np.array([0.5], np.float32))
    assert net.sample(x, known) == [77, 4000]
    net.exe.set_bias(1, np.array([77], np.int32), np.array([-100], np.float32))
    assert net.sample(x, known) == [77, 4000]
    net.net.close()


@pytest.mark.parametrize("temperature", [1e-40, 1e-38, 2e-38, 1e-37, 1e-36, 1e-30])
def test_all_but_freezing_is_greedy(temperature: float) -> None:
    """x / t overflows: the largest logit, of several the lowest id, never id 0 because every weight is NaN."""
    rng = np.random.default_rng(4)
    logits = draw_logits(rng, 4)
    logits[1, [9, 4000]] = 100
    logits[2] = -np.abs(logits[2]) - 50
    logits[3] = np.minimum(logits[3], 0)  # many ids share the largest, 0, which no temperature moves
    known, empty = [np.array([1], np.int32)] * 4, (np.zeros(0, np.int32), np.zeros(0, np.float32))
    params = {**NEUTRAL, "temperature": temperature, "seed": 5}
    row = reference.RowParams(**params, bias=empty, stops=np.zeros(0, np.int32))
    want = [reference.sample(x, row, k) for x, k in zip(logits, known, strict=True)]
    assert want[0] == logits[0].argmax() and want[2] == logits[2].argmax()
    for isa in ISAS:
        net = Logits(isa=isa)
        for slot in range(4):
            net.set(slot, known[slot], params)
        assert net.sample(logits, known) == want, isa
        net.net.close()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad: float) -> None:
    """Only the row that holds it is named."""
    for isa in ISAS:
        net = Logits(isa=isa)
        known = [np.array([1], np.int32)] * 5
        for slot in range(5):
            net.set(slot, known[slot], {})
        x = draw_logits(np.random.default_rng(2), 5)
        x[1, VOCAB - 1] = bad
        x[3, 17] = bad
        net.sample(x, known)
        assert net.exe.finite[:5].tolist() == [1, 0, 1, 0, 1]
        assert all(0 <= t < VOCAB for t in net.exe.sampled[:5])
        net.net.close()


@pytest.mark.parametrize("top", [0, 1, 20])
def test_logprobs(top: int) -> None:
    rng = np.random.default_rng(3)
    x = draw_logits(rng, 3)
    x[1, 100:200] = x[1].max() + 1  # a hundred ties
    for isa in ISAS:
        net = Logits(isa=isa)
        known = [np.array([1], np.int32)] * 3
        for slot in range(3):
            net.set(slot, known[slot], {})
        net.sample(x, known)
        for row, target in ((0, 5), (1, 150), (2, 4999), (2, int(x[2].argmax()))):
            chosen, rank, ids, values = net.exe.logprobs(row, target, top)
            want = reference.logprobs(x[row], target, top)
            assert (rank, list(ids)) == (want[1], list(want[2]))
            np.testing.assert_allclose([chosen, *values], [want[0], *want[3]], atol=1e-5)
        net.net.close()
    with pytest.raises(ValueError):
        native_row_out_of_range()


def test_a_spec_without_a_head_has_nothing_to_sample() -> None:
    net = Net()
    a = net.buffer("f32", 16)
    net.op("add", *net.view(a), *net.view(a), *net.view(a), 1.0)
    net.forward([1], rows=[1])
    with pytest.raises(ValueError, match="no head"):
        net.exe.sample(1)
    with pytest.raises(ValueError, match="no head"):
        net.exe.logprobs(0, 0, 0)
    net.close()


def native_row_out_of_range() -> None:
    net = Logits(isa=native.isa())
    net.net.forward([1], rows=[1])
    net.exe.logprobs(1, 0, 0)
