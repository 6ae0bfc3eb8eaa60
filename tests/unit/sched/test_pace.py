"""How long steps take, learned; and what a step takes of prompts beside sequences that decode."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.executor.fake import FakeExecutor, fake_answer, fake_facts
from octavo.facts import KVGroup, StepCost
from octavo.sched.allowance import LEAST
from octavo.sched.load import Load, Scale
from octavo.sched.pace import LearnedPace
from octavo.types import StepPlan
from tests.unit.sched.test_scheduler import Rig, request

COST = StepCost(step=4e-3, token=7e-4, row=3e-4, read=1e-6, seen=2e-8)
"""Much as SmolLM2 on two cores."""


class Clockwork:
    """A `Pace` that knows: so many seconds a step and a token, whatever the keys."""

    def __init__(self, *, step: float = 0.002, token: float = 0.001) -> None:
        self.step, self.token = step, token
        self.learned: list[tuple[Load, float]] = []

    def seconds(self, load: Load) -> float:
        return self.step + self.token * load.tokens

    def learn(self, load: Load, seconds: float) -> None:
        self.learned.append((load, seconds))


def true_seconds(cost: StepCost, load: Load) -> float:
    return cost.step + cost.token * load.tokens + cost.row * load.rows + cost.read * load.read + cost.seen * load.seen


def mixed(rng: random.Random, scale: Scale) -> Load:
    """A step of some decoding sequences and perhaps a chunk of a prompt."""
    streams = rng.randrange(1, 33)
    load = scale.decode(streams, streams * rng.randrange(50, 400))
    if rng.random() < 0.5:
        load = load.plus(scale.chunk(rng.randrange(0, 2000), 16 * rng.randrange(1, 16), rows=0))
    return load


# -- load -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("windows", [(None,), (7,), (None, 7, 7), (3, 40)])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 9), (5, 4), (30, 1), (30, 17), (6, 2)])
def test_keys_of_a_chunk_are_those_its_tokens_see(windows: tuple[int | None, ...], start: int, count: int) -> None:
    groups = [KVGroup(name=str(i), kind="", layers=i + 1, window=w) for i, w in enumerate(windows)]
    layers = sum(g.layers for g in groups)
    sees = [[range(max(0, p + 1 - (g.window or p + 1)), p + 1) for p in range(start, start + count)] for g in groups]
    seen = sum(g.layers * sum(map(len, s)) for g, s in zip(groups, sees, strict=True)) / layers
    read = sum(g.layers * len(set().union(*s)) for g, s in zip(groups, sees, strict=True)) / layers
    load = Scale(groups).chunk(start, count, rows=1)
    assert (load.tokens, load.rows) == (count, 1)
    assert load.seen == pytest.approx(seen) and load.read == pytest.approx(read)


def test_keys_of_decoding_sequences_are_never_fewer_than_theirs() -> None:
    scale = Scale([KVGroup(name="a", kind="", layers=1), KVGroup(name="b", kind="", layers=3, window=10)])
    contexts = [3, 50, 9, 200]
    whole = Load()
    for context in contexts:
        whole = whole.plus(scale.chunk(context - 1, 1, rows=1))
    together = scale.decode(len(contexts), sum(contexts))
    assert (together.tokens, together.rows) == (4, 4)
    assert whole.seen <= together.seen <= sum(contexts)


# -- the pace ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("truth", [0.1, 0.5, 3.0, 20.0])
def test_a_pace_finds_the_machine_whatever_was_expected(truth: float) -> None:
    rng, scale, pace = random.Random(1), Scale(fake_facts().groups), LearnedPace(COST)
    machine = StepCost(
        step=COST.step * truth, token=COST.token * truth, row=COST.row, read=COST.read * 2, seen=COST.seen * truth
    )
    for _ in range(150):
        load = mixed(rng, scale)
        pace.learn(load, true_seconds(machine, load) * rng.gauss(1.0, 0.05))
    errors = [abs(pace.seconds(x) / true_seconds(machine, x) - 1) for x in (mixed(rng, scale) for _ in range(100))]
    assert sorted(errors)[50] < 0.05 and max(errors) < 0.25


def test_a_few_steps_are_enough_for_more_of_the_same() -> None:
    scale, pace = Scale(fake_facts().groups), LearnedPace(COST)
    load = scale.decode(8, 1600)
    for _ in range(4):
        pace.learn(load, 3 * true_seconds(COST, load))
    assert pace.seconds(load) == pytest.approx(3 * true_seconds(COST, load), rel=0.05)
    chunk = load.plus(scale.chunk(0, 64, rows=0))
    assert pace.seconds(chunk) > 1.5 * true_seconds(COST, chunk), "a slow machine is slow with prompts too"


def test_one_hiccup_does_not_make_a_slow_machine() -> None:
    rng, scale, pace = random.Random(2), Scale(fake_facts().groups), LearnedPace(COST)
    for _ in range(50):
        load = mixed(rng, scale)
        pace.learn(load, true_seconds(COST, load) * rng.gauss(1.0, 0.05))
    load = scale.decode(8, 1600)
    before = pace.seconds(load)
    pace.learn(load, 100 * before)
    assert pace.seconds(load) < 1.2 * before


def test_a_machine_that_gets_slower_is_noticed() -> None:
    rng, scale, pace = random.Random(3), Scale(fake_facts().groups), LearnedPace(COST)
    for i in range(300):
        load = mixed(rng, scale)
        pace.learn(load, true_seconds(COST, load) * (1 if i < 250 else 2))
    load = scale.decode(16, 3200).plus(scale.chunk(100, 32, rows=0))
    assert pace.seconds(load) == pytest.approx(2 * true_seconds(COST, load), rel=0.15)


def test_more_never_takes_less() -> None:
    rng, scale, pace = random.Random(4), Scale(fake_facts().groups), LearnedPace(COST)
    for _ in range(300):
        pace.learn(mixed(rng, scale), rng.choice([1e-9, 1e-3, 1e3]))
        load, more = mixed(rng, scale), mixed(rng, scale)
        assert 0 < pace.seconds(load) < pace.seconds(load.plus(more))


# -- the budget of a step ---------------------------------------------------------------------------------------------
def streams(number: int, *, pace: Clockwork, target: float, max_num_seqs: int = 64) -> Rig:
    """A rig in which so many sequences decode."""
    rig = Rig(pace=pace, target_itl_ms=target, max_num_batched_tokens=256, max_num_seqs=max_num_seqs)
    for i in range(number):
        rig.core.add(request(i, [i + 1] * 5, max_tokens=200))
    rig.step(2)
    return rig


def counts(rig: Rig) -> list[int]:
    return sorted(row.count for row in rig.plans[-1].seqs)


def test_a_prompt_is_cut_to_what_fits_beside_decodes_in_whole_tiles() -> None:
    rig = streams(4, pace=Clockwork(), target=80.0)
    one = request(9, list(range(60)) * 4, max_tokens=3)
    rig.core.add(one)
    rig.step()
    # 80 ms: 2 for the step, 4 for the decodes, 74 left: 9 tiles of 8.
    assert counts(rig) == [1, 1, 1, 1, 72]
    rig.step(2)
    assert counts(rig) == [1, 1, 1, 1, 72]
    rig.step()
    assert counts(rig) == [1, 1, 1, 1, 24], "the rest fits whole"
    assert rig.scheduler.stats().steps_cut == 3
    rig.drain()
    assert rig.tokens(9) == fake_answer(one, facts=rig.facts, limit=rig.scheduler.intake.longest)


def test_with_nobody_decoding_the_token_budget_rules_alone() -> None:
    rig = Rig(pace=Clockwork(), target_itl_ms=20.0, max_num_batched_tokens=256)
    rig.core.add(request(0, [1] * 600, max_tokens=2))
    rig.step()
    assert counts(rig) == [256] and not rig.scheduler.stats().steps_cut


def test_a_target_of_0_is_none() -> None:
    rig = streams(4, pace=Clockwork(), target=0.0)
    rig.core.add(request(9, [1] * 600, max_tokens=2))
    rig.step()
    assert counts(rig) == [1, 1, 1, 1, 252]


def test_16_tokens_a_step_are_the_least_however_small_the_target() -> None:
    rig = streams(4, pace=Clockwork(), target=0.01)
    rig.core.add(request(9, [1] * 50, max_tokens=20))
    rig.step()
    assert counts(rig) == [1, 1, 1, 1, LEAST]
    rig.step(3)
    assert counts(rig) == [1, 1, 1, 1, 2], "16, 16, 16 and the last two"


def test_decodes_that_fill_the_target_alone_leave_prompts_their_share() -> None:
    rig = streams(48, pace=Clockwork(step=1.0, token=0.004), target=20.0, max_num_seqs=64)
    rig.core.add(request(99, [1] * 200, max_tokens=2))
    rig.step()
    assert counts(rig)[-1] == 72, "a quarter of 1.192 s is 74 tokens, and so 9 tiles"


def test_prompts_take_turns_when_time_is_short() -> None:
    rig = streams(2, pace=Clockwork(), target=0.01, max_num_seqs=8)
    for i in range(3):
        rig.core.add(request(10 + i, [i + 1] * 160, max_tokens=2))
    for _ in range(40):
        rig.step()
        assert sum(count for count in counts(rig) if count > 1) <= LEAST, "one prompt a step, not each of them"
    first = {i: rig.outputs.get(10 + i) is not None for i in range(3)}
    assert all(first.values()), "480 tokens at 16 a step are done in 30 steps and a few"


def test_the_tokens_of_decodes_are_never_cut() -> None:
    rig = streams(4, pace=Clockwork(step=10.0), target=1.0)
    rig.core.add(request(9, [1] * 600, max_tokens=2))
    for _ in range(10):
        rig.step()
        assert counts(rig)[:4] == [1, 1, 1, 1]


def test_a_pace_learns_every_step_whose_time_is_known() -> None:
    pace = Clockwork()
    rig = Rig(pace=pace, seconds=lambda plan: 0.5 if plan.step % 2 else 0.0)
    rig.core.add(request(0, [1] * 20, max_tokens=5))
    rig.drain()
    assert [load.tokens for load, _ in pace.learned] == [20, 1, 1] and {s for _, s in pace.learned} == {0.5}
    stats = rig.scheduler.stats()
    assert stats.step_seconds == 1.5
    assert stats.expected_seconds == pytest.approx(0.022 + 0.003 + 0.003)
    assert stats.missed_seconds == pytest.approx(1.5 - stats.expected_seconds)


def test_failed_steps_teach_nothing() -> None:
    pace = Clockwork()
    rig = Rig(pace=pace, seconds=lambda plan: 0.5, fail=lambda plan: "no" if plan.step == 2 else None)
    rig.core.add(request(0, [1] * 20, max_tokens=5))
    rig.drain()
    assert len(pace.learned) == len(rig.plans) - 1


def machine(cost: StepCost, rig: list[Rig]) -> Callable[[StepPlan], float]:
    """What a machine of this cost takes, told by the scheduler's own account of the step."""
    return lambda plan: true_seconds(cost, rig[0].scheduler._flights[0].load)


def test_a_fresh_server_on_an_unknown_machine_keeps_the_target_after_a_few_steps() -> None:
    """Eight streams decode, a prompt of 2,000 tokens comes; the machine is three times slower than expected."""
    slow = StepCost(step=12e-3, token=20e-4, row=9e-4, read=3e-6, seen=6e-8)
    rigs: list[Rig] = []
    took: list[float] = []

    def seconds(plan: StepPlan) -> float:
        took.append(machine(slow, rigs)(plan))
        return took[-1]

    facts = fake_facts(num_blocks=400)
    rig = Rig(facts=facts, pace=LearnedPace(COST), target_itl_ms=100.0, max_num_batched_tokens=256, seconds=seconds)
    rigs.append(rig)
    for i in range(8):
        rig.core.add(request(i, [i] * 64, max_tokens=300))
    rig.step(12)
    rig.core.add(request(9, [3] * 2000, max_tokens=5))
    began = len(took)
    while 9 not in rig.outputs:
        rig.step()
    beside = took[began:]
    assert max(beside[5:]) < 0.110 and max(beside) < 0.200
    assert sum(beside) / len(beside) > 0.080, "the time there is is used"
    assert isinstance(rig.executor, FakeExecutor)
