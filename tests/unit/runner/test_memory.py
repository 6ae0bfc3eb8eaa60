"""The memory plan (R05, R06): what is chosen, what is reduced, what is refused. Advice: test_advice.py."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.errors import DoesNotFit
from octavo.executor.fake import fake_facts
from octavo.facts import KVGroup
from octavo.runner.advice import fit_memory
from octavo.runner.loader import load_runner, plan_model
from octavo.runner.memory import HEADROOM, MIB, Machine, MemoryPlan, Need, plan_memory
from octavo.sched.scheduler import Scheduler
from octavo.weights.checkpoint import open_checkpoint
from tests.tiny import write_tiny

FULL = (KVGroup(name="full", kind="full", layers=1),)
NEED = Need(weights=100 * MIB, buffers=50 * MIB, block=MIB, groups=FULL, model_len=8192)


def plan(free: int, **wishes: Any) -> MemoryPlan:
    """A plan on a machine with `free` MiB left after weights, buffers and headroom."""
    available = HEADROOM + NEED.weights + NEED.buffers + free * MIB
    args = EngineArgs(model="m", **wishes)
    return fit_memory(args, lambda args: NEED, Machine(total=2 * available, available=available))


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
    assert "KV cache" in text or "the longest the model supports" in text
    if said := re.search(r"The largest setting that fits: --(\S+) (\d+) \(a request of (\d+) positions\)", text):
        name, value, longest = said[1].replace("-", "_"), int(said[2]), int(said[3])
        taken = plan(400, **wishes | {name: value})
        assert min(taken.longest, taken.model_len) == longest
        with pytest.raises(DoesNotFit):
            plan(400, **wishes | {name: value + (MIB if name == "kv_cache_memory_bytes" else 1)})
    else:
        assert wishes["max_model_len"] > NEED.model_len


def test_a_pool_too_small_for_anybody_is_said_as_such() -> None:
    sliding = tuple(KVGroup(name=f"w{i}", kind="sliding", layers=1, window=512) for i in range(5))
    need = Need(weights=0, buffers=0, block=MIB, groups=FULL + sliding, model_len=8192)
    machine = Machine(total=2**40, available=2**40)
    with pytest.raises(DoesNotFit, match="--num-kv-blocks: got 6, allowed: 7 or more"):
        fit_memory(EngineArgs(model="m", num_kv_blocks=6), lambda args: need, machine)
    with pytest.raises(DoesNotFit, match=f"--kv-cache-memory-bytes: got {6 * MIB}, allowed: {7 * MIB} or more"):
        fit_memory(EngineArgs(model="m", kv_cache_memory_bytes=6 * MIB), lambda args: need, machine)


TABLE = """\
  total memory         1,300 MiB
  used by others         650 MiB
  weights                100 MiB
  buffers                 50 MiB
  KV cache                31 MiB
  KV blocks               30 of 16 positions, 1,048,576 bytes each
  longest request        480 positions"""
MACHINE = Machine(total=1300 * MIB, available=650 * MIB)


def test_the_table_names_every_item() -> None:
    whole = plan_memory(EngineArgs(model="m", num_kv_blocks=31), NEED, MACHINE)
    assert whole.table() == TABLE
    short = plan_memory(EngineArgs(model="m", num_kv_blocks=31, max_model_len=200), NEED, MACHINE)
    assert short.table() == TABLE.replace(" 480 positions", " 200 positions"), "what is served, not what would fit"


def test_a_start_logs_the_table_and_a_refusal_ends_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny(tmp_path, "llama")
    args = EngineArgs(model=str(path), executor="reference", num_kv_blocks=31)
    plan = plan_model(args, open_checkpoint(path), machine=Machine.read()).memory
    with caplog.at_level(logging.INFO, logger="octavo"):
        load_runner(args).close()
    (logged,) = [m for r in caplog.records if (m := r.getMessage()).startswith("memory plan:\n")]
    free = re.compile(r"(used by others +)[\d,]+")  # it changes from moment to moment
    assert free.sub(r"\1", logged.removeprefix("memory plan:\n")) == free.sub(r"\1", plan.table())
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(EngineArgs(model="m", num_kv_blocks=310), NEED, MACHINE)
    assert "KV cache               310 MiB" in str(caught.value)


@pytest.mark.parametrize("given", [1, MIB, 2 * MIB - 1])
def test_a_pool_without_a_block_says_what_it_takes(given: int) -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_memory(EngineArgs(model="m", kv_cache_memory_bytes=given), NEED, MACHINE)
    says = str(caught.value)
    assert says.startswith(
        "The KV cache holds no sequence: it takes 2 blocks (2097152 bytes) or more, and there is room"
    )
    assert "KV blocks                0 of 16 positions" in says
    assert plan_memory(EngineArgs(model="m", kv_cache_memory_bytes=2 * MIB), NEED, MACHINE).num_blocks == 2


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


@pytest.mark.parametrize("threshold", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("chain", [1, 2, 4])
def test_the_plan_and_the_scheduler_hold_the_same_sequence(threshold: int, chain: int) -> None:
    """Both count a step of the same size, also where steps in flight are more than a prompt's share of one."""
    facts = fake_facts(windows=(8, None), block_size=8, num_blocks=40)
    args = EngineArgs(
        model="m",
        block_size=8,
        num_kv_blocks=40,
        max_num_seqs=4,
        long_prefill_token_threshold=threshold,
        depth=chain,
        chain=chain,
    )
    need = Need(weights=0, buffers=0, block=1, groups=facts.groups, model_len=facts.model_len)
    found = plan_memory(args, need, Machine(total=2**40, available=2**40))
    config = resolve(args, facts)
    assert found.chunk == config.scheduler.chunk
    assert found.longest == Scheduler(config.scheduler, facts).kv.max_positions
    assert found.model_len == config.max_model_len
