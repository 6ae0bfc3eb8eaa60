"""Row ops: values against NumPy in float64, bits of every variant against scalar."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.kernels.reference import rows
from octavo.program.ir import ACTIVATIONS
from tests.ops.native_net import CODE_ERROR, ISAS, Net, bf16

WIDTHS = [16, 20, 33, 96, 576, 1000]
RNG = np.random.default_rng(5)
TOKENS = 5


def everywhere(make: Callable[[Net], int], fill: Callable[[Net], None], **forward: Any) -> np.ndarray:
    """The output buffer's values; asserts that every variant and thread count gives scalar's bits."""
    seen: dict[tuple[str, int], bytes] = {}
    values = None
    for isa in ISAS:
        for threads in (1, 2):
            net = Net(isa=isa, threads=threads, max_tokens=TOKENS, max_len=64)
            out = make(net)
            fill(net)
            net.forward([TOKENS], **forward)
            values = net.read(out, TOKENS)
            seen[isa, threads] = net.bits(out, TOKENS)
            net.close()
    assert all(bits == seen["scalar", 1] for bits in seen.values()), [
        k for k, v in seen.items() if v != seen["scalar", 1]
    ]
    assert values is not None
    return values


def close(got: Any, want: Any, dtype: str) -> None:
    want = np.asarray(want)
    if dtype == "f32":
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6)
    elif dtype == "bf16":
        np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-6)
    else:
        assert np.abs(got - want).max() <= np.abs(want).max() * CODE_ERROR[dtype]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q8t"])
@pytest.mark.parametrize("width", WIDTHS)
def test_norm(width: int, dtype: str) -> None:
    x = RNG.standard_normal((TOKENS, width)).astype(np.float32) * 3
    w = RNG.standard_normal(width).astype(np.float32)

    def make(net: Net) -> int:
        a, y = net.buffer("f32", width), net.buffer(dtype, width)
        net.op("norm", *net.view(a), *net.view(y), net.vec(w), 1e-5, 0)
        return y

    x64 = x.astype(np.float64)
    want = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5) * w
    close(everywhere(make, lambda net: net.write(0, x)), want, dtype)


def test_norm_per_head() -> None:
    x = RNG.standard_normal((TOKENS, 60)).astype(np.float32)
    w = RNG.standard_normal(20).astype(np.float32)

    def make(net: Net) -> int:
        a, y = net.buffer("f32", 60), net.buffer("f32", 60)
        net.op("norm", *net.view(a, heads=3), *net.view(y, heads=3), net.vec(w), 1e-6, 1)
        return y

    h = x.astype(np.float64).reshape(TOKENS, 3, 20)
    want = (h / np.sqrt((h**2).mean(2, keepdims=True) + 1e-6) * w).reshape(TOKENS, 60)
    close(everywhere(make, lambda net: net.write(0, x)), want, "f32")


ACTS: dict[str, Callable[[Any], Any]] = {
    "silu": lambda g: g / (1 + np.exp(-g)),
    "gelu": lambda g: g * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(g),
    "gelu_tanh": lambda g: 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
}


@pytest.mark.parametrize("fn", ACTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q8t"])
@pytest.mark.parametrize("width", WIDTHS)
def test_act(width: int, dtype: str, fn: str) -> None:
    x = (RNG.standard_normal((TOKENS, 2 * width)) * 6).astype(np.float32)
    x[0, :6] = [-200, -90, 90, 200, 0, -1e-30]

    def make(net: Net) -> int:
        a, y = net.buffer("f32", 2 * width), net.buffer(dtype, width)
        views = (*net.view(a, 0, width=width), *net.view(a, width, width=width), *net.view(y))
        net.op("act", *views, ACTIVATIONS.index(fn))
        return y

    g, u = x[:, :width].astype(np.float64), x[:, width:].astype(np.float64)
    got = everywhere(make, lambda net: net.write(0, x))
    close(got, ACTS[fn](g) * u, dtype)
    if dtype == "f32":
        reference = rows.ACTIVATIONS[fn](x[:, :width], x[:, width:])
        np.testing.assert_allclose(got, reference, rtol=3e-6, atol=2e-6)


@pytest.mark.parametrize("fn", ["gelu", "silu"])
def test_an_activations_tail_is_good_in_relative_error(fn: str) -> None:
    """What lies far below 0 is small, not lost. (gelu_tanh's own formula cancels there.)"""
    g = np.linspace(-5, 5, 4 * TOKENS * 100, dtype=np.float32).reshape(TOKENS, -1)

    def make(net: Net) -> int:
        a, one, y = (net.buffer("f32", g.shape[1]) for _ in range(3))
        net.op("act", *net.view(a), *net.view(one), *net.view(y), ACTIVATIONS.index(fn))
        return y

    def fill(net: Net) -> None:
        net.write(0, g)
        net.write(1, np.ones_like(g))

    np.testing.assert_allclose(everywhere(make, fill), ACTS[fn](g.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize("width", WIDTHS)
def test_scale(width: int, softcap: float) -> None:
    x = (RNG.standard_normal((TOKENS, width)) * 20).astype(np.float32)
    x[0, :6] = [0, 1e-20, -1e4, 1e4, 18.7, -18.8]

    def make(net: Net) -> int:
        a = net.buffer("f32", width)
        net.op("scale", *net.view(a), *net.view(a), 0.37, softcap)
        return a

    y = x.astype(np.float64) * np.float32(0.37)
    want = softcap * np.tanh(y / softcap) if softcap else y
    got = everywhere(make, lambda net: net.write(0, x))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(got, rows.scale(x, 0.37, softcap=softcap), rtol=1e-6)


def test_add_scales_its_second_operand() -> None:
    x = RNG.standard_normal((TOKENS, 37)).astype(np.float32)

    def make(net: Net) -> int:
        a = net.buffer("f32", 37)
        net.op("add", *net.view(a), *net.view(a), *net.view(a), 0.22)
        return a

    got = everywhere(make, lambda net: net.write(0, x))
    assert (got == x + x * np.float32(0.22)).all()


@pytest.mark.parametrize(("heads", "width", "rotary"), [(3, 64, 64), (2, 20, 20), (2, 80, 32), (1, 256, 256)])
def test_rope(heads: int, width: int, rotary: int) -> None:
    n = heads * width
    x = RNG.standard_normal((TOKENS, n + 8)).astype(np.float32)
    angle = np.arange(64)[:, None] / 100.0 ** (np.arange(rotary // 2) / (rotary // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def make(net: Net) -> int:
        a = net.buffer("f32", n + 8)
        view = net.view(a, 8, heads, width, width)
        net.op("rope", *view, *view, net.vec(cos), net.vec(sin), rotary)
        return a

    got = everywhere(make, lambda net: net.write(0, x), starts=[7])
    h = x[:, 8:].reshape(TOKENS, heads, width).astype(np.float64)
    c, s = cos[7 : 7 + TOKENS, None], sin[7 : 7 + TOKENS, None]
    x0, x1 = h[..., : rotary // 2], h[..., rotary // 2 : rotary]
    want = np.concatenate([x0 * c - x1 * s, x1 * c + x0 * s, h[..., rotary:]], -1).reshape(TOKENS, n)
    close(got[:, 8:], want, "f32")
    assert (got[:, :8] == x[:, :8]).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q8t"])
def test_add_and_cast(dtype: str) -> None:
    """Two ops of one stage; strided heads are gathered."""
    x = RNG.standard_normal((TOKENS, 80)).astype(np.float32)
    y = RNG.standard_normal((TOKENS, 48)).astype(np.float32)

    def make(net: Net) -> int:
        a, b, s, out = net.buffer("f32", 80), net.buffer("bf16", 48), net.buffer("f32", 48), net.buffer(dtype, 48)
        net.op("add", *net.view(a, 8, 3, 24, 16), *net.view(b), *net.view(s), 1.0)
        net.op("cast", *net.view(s), *net.view(out))
        return out

    def fill(net: Net) -> None:
        net.write(0, x)
        net.write(1, y)

    picked = x[:, 8:].reshape(TOKENS, 3, 24)[..., :16].reshape(TOKENS, 48)
    close(everywhere(make, fill), picked + bf16(y), dtype)


def test_q8_edges() -> None:
    """Zeros, a tie, and the extremes of a group."""
    x = np.zeros((TOKENS, 40), np.float32)
    x[1, :3] = [127, 0.5, 1.5]
    x[2, 32:] = -3
    x[3] = np.float32(1e-38)

    def make(net: Net) -> int:
        a, out = net.buffer("f32", 40), net.buffer("q8", 40)
        net.op("cast", *net.view(a), *net.view(out))
        return out

    got = everywhere(make, lambda net: net.write(0, x))
    assert (got[0] == 0).all()
    assert got[1, :3].tolist() == [127, 0, 2]
    assert (got[2, 32:] == -3).all()


def test_embed_and_gather() -> None:
    table = RNG.standard_normal((64, 40)).astype(np.float32)
    for isa in ISAS:
        net = Net(isa=isa, vocab=64)
        w = net.matrix("f32", "f32", 64, 40, table.view(np.uint8))
        x, rows = net.buffer("f32", 40), net.buffer("f32", 40, "R")
        net.op("embed", x, w)
        net.op("gather", x, rows)
        ids = [[3, 9, 63], [0, 1]]
        net.forward([3, 2], rows=[1, 2], tokens=ids)
        assert (net.read(x, 5) == table[[3, 9, 63, 0, 1]]).all()
        assert (net.read(rows, 3) == table[[63, 0, 1]]).all()
        net.close()


def test_inputs_are_checked() -> None:
    net = Net(max_tokens=4)
    a = net.buffer("f32", 16)
    net.op("add", *net.view(a), *net.view(a), *net.view(a), 1.0)
    net.forward([2])
    bad: list[dict[str, Any]] = [
        {"counts": [5]}, {"counts": [0]}, {"counts": [2], "starts": [63]}, {"counts": [2], "rows": [3]},
    ]  # fmt: skip
    for inputs in bad:
        with pytest.raises(ValueError):
            net.forward(**inputs)
    with pytest.raises(ValueError, match="segment"):
        net.forward([2], segment="no such")
    net.close()


def test_specs_are_checked() -> None:
    def refuse(*op: Any) -> None:
        net = Net()
        net.buffer("f32", 16)
        net.buffer("q8", 16)
        net.buffer("q8t", 64)
        net.buffer("f32", 64)
        net.op(*op)
        with pytest.raises(ValueError, match="executable spec"):
            net.build()

    refuse("no_such_op", 1)
    refuse("add", 0, 0, 1, 16, 16)
    refuse("add", *(0, 0, 1, 16, 16), *(0, 8, 1, 16, 16), *(0, 0, 1, 16, 16), 1.0)
    refuse("add", *(1, 0, 1, 16, 16), *(0, 0, 1, 16, 16), *(0, 0, 1, 16, 16), 1.0)
    refuse("norm", *(0, 0, 1, 16, 16), *(0, 0, 1, 16, 16), 0, 1e-5, 0)
    refuse("gather", 0, 0)
    refuse("cast", *(0, 0, 1, 16, 16), *(2, 0, 1, 16, 16))  # a scale of a row that is not written whole
    refuse("cast", *(3, 0, 1, 32, 32), *(2, 32, 1, 32, 32))
    refuse("cast", *(2, 0, 1, 64, 64), *(3, 0, 1, 64, 64))
    refuse("cast", *(0.5, 0, 1, 16, 16), *(0, 0, 1, 16, 16))
    refuse("cast", *(0, 0, 2.0**52, 2.0**52, 16), *(0, 0, 1, 16, 16))
    refuse("cast", *(0, float("nan"), 1, 16, 16), *(0, 0, 1, 16, 16))


@pytest.mark.parametrize("name", ["max_tokens", "max_rows", "max_seqs", "max_blocks", "max_len"])
@pytest.mark.parametrize("size", [0, -1, 1 << 30, 1 << 62])
def test_limits_are_checked(name: str, size: int) -> None:
    """Before anything of such a size is allocated."""
    net = Net()
    net.limits[name] = size
    with pytest.raises(ValueError, match="executable spec: limits"):
        net.build()


@pytest.mark.parametrize("place", [(1 << 62, 1), (0, 1 << 62), (0, 0), (64, 1)])
def test_buffers_lie_in_the_arena(place: tuple[int, int]) -> None:
    net = Net(max_tokens=1)
    net.buffer("f32", 16)
    net.buffers[0] = ("f32", 16, "T", *place)
    with pytest.raises(ValueError, match="executable spec: a buffer"):
        net.build()
