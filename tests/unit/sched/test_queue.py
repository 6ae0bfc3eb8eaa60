"""One order, and removal that does not search."""

from __future__ import annotations

import random
from array import array

import msgspec
import pytest

from octavo.config.policy import POLICIES, PolicyName
from octavo.config.scheduler import SchedulerConfig
from octavo.errors import ConfigError
from octavo.executor.fake import fake_facts
from octavo.sched.intake import Intake
from octavo.sched.kv import KVManager
from octavo.sched.queue import WaitingQueue
from octavo.sched.sequence import Sequence
from octavo.types import Request, SamplingParams


def sequences(policy: PolicyName, *traits: tuple[float, int]) -> list[Sequence]:
    facts = fake_facts()
    intake = Intake(facts, kv=KVManager(facts, caching=True), policy=POLICIES[policy], max_model_len=100)
    made = []
    for i, (arrival, priority) in enumerate(traits):
        prompt = array("i", [1]).tobytes()
        seq = intake.sequence(Request(i, prompt, SamplingParams(), arrival=arrival, priority=priority))
        assert isinstance(seq, Sequence)
        made.append(seq)
    return made


def drained(queue: WaitingQueue) -> list[int]:
    order = []
    while (seq := queue.peek()) is not None:
        order.append(seq.seq_id)
        queue.remove(seq)
    assert len(queue) == 0
    return order


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [3, 1, 0, 2]), ("priority", [0, 3, 1, 2])])
def test_order(policy: PolicyName, order: list[int]) -> None:
    queue = WaitingQueue()
    for seq in sequences(policy, (5.0, -1), (4.0, 0), (6.0, 0), (1.0, 0)):
        queue.push(seq)
    assert drained(queue) == order


def test_ties_go_to_the_lower_id() -> None:
    queue = WaitingQueue()
    for seq in reversed(sequences("fcfs", (1.0, 0), (1.0, 0), (1.0, 0))):
        queue.push(seq)
    assert drained(queue) == [0, 1, 2]


def test_removed_and_pushed_again() -> None:
    rng = random.Random(0)
    queue, made, inside = WaitingQueue(), sequences("fcfs", *[(float(i), 0) for i in range(40)]), set()
    for _ in range(3000):
        seq = rng.choice(made)
        if seq in inside:
            queue.remove(seq)
            inside.discard(seq)
        else:
            queue.push(seq)
            inside.add(seq)
        assert len(queue) == len(inside)
        head = queue.peek()
        assert head is (min(inside) if inside else None)
        assert len(queue._heap) <= 2 * len(inside) + 1, "aborted sequences pile up"
    assert drained(queue) == sorted(seq.seq_id for seq in inside)


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="policy: got 'lifo', allowed: 'fcfs', 'priority'"):
        msgspec.structs.replace(SchedulerConfig(), policy="lifo")
    with pytest.raises(ConfigError, match="max_num_seqs"):
        SchedulerConfig(max_num_seqs=0)
