"""The factors of an int8 cache's keys: powers of two, one for dims that rope mixes, ones where no dim is loud."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.nn import Build
from octavo.nn.attention import Attention, AttentionShape
from octavo.program.balance import MOST, Balance
from octavo.program.builder import Builder


def test_a_loud_dim_and_its_partner() -> None:
    bias = np.ones((2, 16), np.float32)
    bias[1, 3] = 40.0
    factors = Balance(heads=2, rotary=16).of(bias.reshape(-1)).reshape(2, 16)
    assert (factors[0] == 1).all()
    assert factors[1, 3] == factors[1, 11] == 32  # 40 over a usual pair of 1.41
    assert factors[1].sum() == 14 + 2 * 32


def test_dims_without_rope_stand_alone() -> None:
    bias = np.zeros(16, np.float32)
    bias[[1, 9]] = 8.0, 1000.0
    assert Balance(heads=1, rotary=8).of(bias).tolist() == [1, 8, 1, 1, 1, 8, 1, 1, 1, 256, 1, 1, 1, 1, 1, 1]
    assert Balance(heads=1, rotary=0).of(bias).tolist() == [1, 8, 1, 1, 1, 1, 1, 1, 1, 256, 1, 1, 1, 1, 1, 1]


@given(st.lists(st.floats(width=32), min_size=16, max_size=16), st.sampled_from([0, 4, 8]))
def test_whatever_the_bias(values: list[float], rotary: int) -> None:
    factors = Balance(heads=2, rotary=rotary).of(np.asarray(values, np.float32))
    powers = np.log2(factors)
    assert (powers == np.rint(powers)).all() and powers.min() >= 0 and powers.max() <= MOST
    half = rotary // 2
    heads = factors.reshape(2, 8)
    assert (heads[:, :half] == heads[:, half:rotary]).all()


@pytest.mark.parametrize(
    ("bias", "fused", "has"), [(True, None, True), (False, None, False), (True, "qkv_proj", False)]
)
def test_who_has_one(bias: bool, fused: str | None, has: bool) -> None:
    """Keys with a bias of their own tensor."""
    builder = Builder("m", vocab_size=32, max_len=64)
    group = builder.kv_group("full", layers=1, kv_heads=1, head_dim=8)
    shape = AttentionShape(heads=2, kv_heads=1, head_dim=8, rope=None, bias=bias, fused=fused)
    place = "model.layers.0.self_attn"
    attention = Attention(Build(builder, place), 16, shape, group=group, layer=0)
    assert attention._balance == (f"{place}.k_proj.bias.balance" if has else None)
