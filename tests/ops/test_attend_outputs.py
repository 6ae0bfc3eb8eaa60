"""What attention writes where its output is narrower than f32: rounded once, and codes as every other op makes them."""

from __future__ import annotations

import numpy as np
import pytest

from octavo._native import quantize_rows
from tests.ops.native_net import CODE_ERROR, ISAS, bf16, native
from tests.ops.test_attend import DTYPES, Case, make_net, run


@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 80), (2, 1, 20)])
@pytest.mark.parametrize("out", ["bf16", "q8", "q8t"])
def test_outputs(out: str, heads: tuple[int, int, int]) -> None:
    """A narrower output is the f32 result rounded once; (80, 20): heads that end inside a group of 32."""
    case = Case(40, heads, seed=5)
    full = run(net := make_net(case, "bf16"), case, [40])
    net.close()
    for isa in ISAS:
        got = run(net := make_net(case, "bf16", out=out, q="bf16", isa=isa, threads=2), case, [33, 7])
        net.close()
        if out == "bf16":
            assert (got == bf16(full)).all()
        else:
            assert np.abs(got - full).max() <= np.abs(full).max() * CODE_ERROR[out]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 2, 32), (6, 1, 16), (4, 4, 80), (2, 1, 20)])
def test_codes_are_those_of_a_row(heads: tuple[int, int, int], dtype: str) -> None:
    """One quantiser, whoever calls it: a NaN or an infinity in V is no finite code, a group too small for codes is 0.

    Otherwise a request whose numbers broke would go on with garbage, and take it into the prefix cache.
    """
    case = Case(40, heads, seed=6)
    last = (case.kv_heads - 1) * case.dim  # the numbers of the last KV head
    case.v[10, last + 1], case.v[20, last + 3], case.v[30, last + 2] = np.inf, np.nan, -np.inf
    case.v[:, :last] *= 1e-33
    got = set()
    for isa in ISAS:
        net = make_net(case, dtype, isa=isa, threads=2)
        full = run(net, case, [40])
        net.close()
        net = make_net(case, dtype, out="q8", isa=isa, threads=2)
        with np.errstate(invalid="ignore"):
            run(net, case, [40])
        scale = net.read_q8(3, 40)[1]
        assert not np.isfinite(scale[10:]).all(axis=1).any(), isa
        assert case.kv_heads == 1 or (scale == 1).any(), isa  # the scale of no codes
        rows = net.bits(3, 40)
        got.add(rows)
        team = native.Team(1)
        alone = np.zeros((40, native.row_bytes("q8", full.shape[1])), np.uint8)
        quantize_rows(team, isa, full, alone.reshape(-1))
        team.close()
        net._rows(3, 40)[:] = alone
        assert net.bits(3, 40) == rows, isa
        net.close()
    assert len(got) == 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_is_not_a_number_stays_in_its_rows(dtype: str) -> None:
    """NaNs of either sign among queries, and infinite scores: the same rows are NaN in every variant, whatever rounds
    the weights, and all others keep their bits."""
    case = Case(150, (6, 2, 64), seed=7)
    case.q[20, 3], case.q[40, 70] = np.nan, np.float32(np.inf)
    case.q[60, 130:140] = np.array([0xFFC01234], np.uint32).view(np.float32)[0]
    got = []
    for isa in ISAS:
        net = make_net(case, dtype, isa=isa, threads=2)
        with np.errstate(invalid="ignore"):
            got.append(run(net, case, [100, 50]))
        net.close()
    bad = np.isnan(got[0])
    assert bad[[20, 40, 60]].any(axis=1).all()
    assert bad.any(axis=1).sum() == 3
    for other in got[1:]:
        assert (np.isnan(other) == bad).all()
        assert (other[~bad] == got[0][~bad]).all()
