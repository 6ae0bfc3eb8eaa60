"""The memory plan (R05, R06): what is chosen, what is reduced, what is refused, and that a refusal's advice fits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.args import EngineArgs
from octavo.errors import DoesNotFit
from octavo.facts import KVGroup
from octavo.runner.memory import HEADROOM, MIB, Machine, MemoryPlan, Need, plan_memory

FULL = (KVGroup(name="full", kind="full", layers=1),)
NEED = Need(weights=100 * MIB, buffers=50 * MIB, block=MIB, groups=FULL, model_len=8192)


def plan(free: int, **wishes: Any) -> MemoryPlan:
    """A plan on a machine with `free` MiB left after weights, buffers and headroom."""
    available = HEADROOM + NEED.weights + NEED.buffers + free * MIB
    args = EngineArgs(model="m", **wishes)
    return plan_memory(args, NEED, Machine(total=2 * available, available=available))


def test_room_for_typical_sequences_where_there_is_plenty() -> None:
    found = plan(100_000, max_num_seqs=32)
    assert found.num_blocks - 1 == 32 * 1024 // 16
    assert found.model_len == 8192
    assert not found.reduced


def test_half_of_what_is_free_where_there_is_less_and_the_length_follows() -> None:
    found = plan(400)
    assert found.num_blocks == 200
    assert found.model_len == 199 * 16
    assert found.reduced


def test_an_explicit_length_may_take_more_than_half() -> None:
    assert plan(400, max_model_len=350 * 16).model_len == 350 * 16


def test_explicit_pools() -> None:
    assert plan(400, num_kv_blocks=11).num_blocks == 11
    assert plan(400, kv_cache_memory_bytes=30 * MIB).num_blocks == 30


@pytest.mark.parametrize(
    "wishes",
    [{"max_model_len": 8193}, {"max_model_len": 6416}, {"num_kv_blocks": 500}, {"kv_cache_memory_bytes": 500 * MIB}],
)
def test_refusals_say_what_fits(wishes: dict[str, int]) -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(400, **wishes)
    text = str(caught.value)
    assert re.search(r"fits|allowed: up to", text)
    if advice := re.search(r"--kv-cache-memory-bytes (\d+)", text):
        assert plan(400, kv_cache_memory_bytes=int(advice[1])).num_blocks == 400
    if (allowed := re.search(r"--max-model-len: .* allowed: up to (\d+)", text)) and int(allowed[1]) < 8192:
        assert plan(400, max_model_len=int(allowed[1])).model_len == int(allowed[1])


def test_no_room_for_weights_is_said_in_missing_bytes() -> None:
    with pytest.raises(DoesNotFit, match="MiB are missing"):
        plan(-100)


@given(free=st.integers(4, 100_000), seqs=st.integers(1, 512), length=st.none() | st.integers(1, 8192))
def test_a_plan_fits_or_is_refused(free: int, seqs: int, length: int | None) -> None:
    try:
        found = plan(free, max_num_seqs=seqs, max_model_len=length)
    except DoesNotFit:
        assert length is not None and -(-length // 16) + 1 > free
        return
    assert 2 <= found.num_blocks <= free
    assert 0 < found.model_len <= found.longest
    assert found.model_len == length or length is None


def test_windows_hold_less_and_a_longer_sequence_fits() -> None:
    """One full group and five windows of 512, a block of 1 MiB each; at most 256 positions a step."""
    sliding = tuple(KVGroup(name=f"w{i}", kind="sliding", layers=1, window=512) for i in range(5))
    need = Need(weights=0, buffers=0, block=MIB, groups=FULL + sliding, model_len=8192)
    machine = Machine(total=2**40, available=2**40)
    most = (511 + 256 + 30) // 16
    found = plan_memory(EngineArgs(model="m", num_kv_blocks=6 * 64 + 1), need, machine)
    assert found.longest == found.model_len == (6 * 64 - 5 * most) * 16 > 64 * 16
    whole = plan_memory(EngineArgs(model="m", max_num_seqs=1), need, machine)
    assert whole.num_blocks - 1 == 8192 // 16 + 5 * most
