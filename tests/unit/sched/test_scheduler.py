"""Rules one by one: rows B2-B5, C2-C6, E1, E2, R12, R31, S15."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from octavo.config.scheduler import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError, InvalidRequest, PromptTooLong
from octavo.executor.fake import FakeExecutor, fake_answer, fake_facts
from octavo.facts import Facts, KVGroup
from octavo.sched.pace import Pace
from octavo.sched.scheduler import Scheduler
from octavo.types import FinishReason, Request, SamplingParams, SeqOutput, StepPlan, StepResult


def request(seq_id: int, prompt: list[int], *, priority: int = 0, root: bytes = b"", **params: Any) -> Request:
    made = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **params})
    return Request(seq_id, array("i", prompt).tobytes(), made, arrival=float(seq_id), priority=priority, root=root)


class Rig:
    """Scheduler, fake and loop; plans are kept."""

    def __init__(
        self,
        *,
        facts: Facts | None = None,
        depth: int = 1,
        fail: Callable[[StepPlan], str | None] | None = None,
        seconds: Callable[[StepPlan], float] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = lambda: 50.0,
        **config: Any,
    ) -> None:
        self.facts = facts or fake_facts()
        made = SchedulerConfig(**config)
        self.scheduler = Scheduler(made, self.facts, clock=clock, pace=pace)
        self.executor = FakeExecutor(self.facts, fail=fail, seconds=seconds)
        self.core = EngineCore(self.scheduler, self.executor, depth=depth)
        self.plans: list[StepPlan] = []
        self.outputs: dict[int, list[SeqOutput]] = {}
        inner = self.executor.submit

        def submit(plan: StepPlan) -> None:
            self.plans.append(plan)
            inner(plan)

        watched: Any = self.executor
        watched.submit = submit

    def step(self, times: int = 1) -> list[SeqOutput]:
        came: list[SeqOutput] = []
        for _ in range(times):
            came += self.core.step()
        for output in came:
            self.outputs.setdefault(output.seq_id, []).append(output)
        self.scheduler.check()
        return came

    def drain(self) -> None:
        for _ in range(10_000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("no end")

    def tokens(self, seq_id: int) -> list[int]:
        return [token for output in self.outputs.get(seq_id, []) for token in output.new_ids]

    def last(self, seq_id: int) -> SeqOutput:
        return self.outputs[seq_id][-1]


def truth(rig: Rig, one: Request) -> list[int]:
    return fake_answer(one, facts=rig.facts, limit=rig.scheduler.intake.longest)


def test_an_arrival_joins_the_next_step_beside_decodes() -> None:
    rig = Rig()
    rig.core.add(request(0, [1] * 20, max_tokens=10))
    rig.step(3)
    rig.core.add(request(1, [2] * 20, max_tokens=10))
    rig.step()
    assert [(row.count, row.rows) for row in rig.plans[-1].seqs] == [(1, 1), (20, 1)]


def test_chunks_sample_only_at_the_end() -> None:
    rig = Rig(max_num_batched_tokens=8)
    one = request(0, list(range(20)), max_tokens=3)
    rig.core.add(one)
    rig.drain()
    assert [(row.count, row.rows) for plan in rig.plans for row in plan.seqs] == [
        (8, 0),
        (8, 0),
        (4, 1),
        (1, 1),
        (1, 1),
    ]
    assert rig.tokens(0) == truth(rig, one)


def test_long_prefill_threshold_caps_a_prompt_and_decodes_come_first() -> None:
    rig = Rig(max_num_batched_tokens=64, long_prefill_token_threshold=16)
    rig.core.add(request(0, [1] * 4, max_tokens=50))
    rig.step(2)
    rig.core.add(request(1, [2] * 40, max_tokens=2))
    rig.step(3)
    counts = [[row.count for row in plan.seqs] for plan in rig.plans[2:]]
    assert counts == [[1, 16], [1, 16], [1, 8]]


@pytest.mark.parametrize(
    ("params", "finish"),
    [
        ({"ignore_eos": False, "max_tokens": 500}, FinishReason.STOP),
        ({"stop_token_ids": (3,), "max_tokens": 500}, FinishReason.STOP),
        ({"max_tokens": 5}, FinishReason.LENGTH),
        ({"max_tokens": None}, FinishReason.LENGTH),
        ({"ignore_eos": False, "min_tokens": 120, "max_tokens": 500}, FinishReason.STOP),
    ],
)
def test_endings(params: dict[str, object], finish: FinishReason) -> None:
    rig = Rig(max_model_len=1000)
    one = request(0, [4, 5, 6], **params)
    rig.core.add(one)
    rig.drain()
    got, last = rig.tokens(0), rig.last(0)
    assert got == truth(rig, one) and last.finish is finish
    if finish is FinishReason.STOP:
        assert last.stop_token == got[-1] == (3 if one.params.stop_token_ids else 7), "a stop token is kept"
        assert len(got) > one.params.min_tokens
    elif one.params.max_tokens is None:
        assert len(got) == 997


def test_refusals_say_what_and_how_much() -> None:
    rig = Rig(facts=fake_facts(num_blocks=5), max_model_len=1000)
    refused = rig.core.add(request(0, [1] * 64))
    assert refused is not None and isinstance(refused.error(), PromptTooLong)
    assert "64 tokens" in refused.message and "63" in refused.message
    for prompt in ([], [-1], [64], [2**31 - 1]):
        refused = rig.core.add(request(1, prompt))
        assert refused is not None and type(refused.error()) is InvalidRequest, prompt
    assert rig.core.add(request(2, [1])) is None
    again = rig.core.add(request(2, [1]))
    assert again is not None and "in use" in again.message
    rig.drain()


def test_one_request_uses_the_whole_pool_while_slots_are_many() -> None:
    rig = Rig(facts=fake_facts(num_blocks=65), max_num_seqs=16)
    long = request(0, [1] * 900, max_tokens=None)
    rig.core.add(long)
    rig.core.add(request(1, [2] * 20, max_tokens=20))
    rig.drain()
    assert len(rig.tokens(0)) == 64 * 16 - 900 and rig.tokens(0) == truth(rig, long)


def test_cached_tokens_and_queue_time_are_told() -> None:
    rig = Rig()
    rig.core.add(request(0, [1] * 40, max_tokens=2))
    rig.drain()
    rig.core.add(request(1, [1] * 40, max_tokens=2))
    rig.drain()
    assert [output.cached_tokens for output in rig.outputs[0] + rig.outputs[1]] == [0, 0, 32, 32]
    assert [output.queued_s for output in rig.outputs[1]] == [49.0, 0.0]
    stats = rig.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (80, 32)


def test_caching_off_finds_nothing() -> None:
    rig = Rig(enable_prefix_caching=False)
    for i in range(2):
        rig.core.add(request(i, [1] * 40, max_tokens=2))
        rig.drain()
    stats = rig.scheduler.stats()
    assert (stats.blocks_cached, stats.prefix_queries, stats.prefix_hits) == (0, 0, 0)


def test_a_live_block_is_shared_and_a_second_sequence_in_the_same_plan_hits() -> None:
    rig = Rig()
    rig.core.add(request(0, [1] * 33, max_tokens=5))
    rig.core.add(request(1, [1] * 33, max_tokens=5))
    rig.step()
    assert [row.count for row in rig.plans[0].seqs] == [33, 1]
    assert rig.scheduler.kv.pool.used == 4, "two shared blocks, one of its own each"
    rig.drain()
    assert rig.tokens(0) == rig.tokens(1)


def test_a_better_key_preempts_worse_ones_only_and_is_admitted_afterwards() -> None:
    rig = Rig(facts=fake_facts(num_blocks=9), policy="priority", max_num_seqs=4)
    low = request(0, [1] * 60, max_tokens=40, priority=5)
    high = request(1, [2] * 70, max_tokens=20, priority=0)
    rig.core.add(low)
    rig.step(3)
    rig.core.add(high)
    rig.step()
    assert [row.new.seq_id for row in rig.plans[-1].seqs if row.new] == [1]
    assert rig.scheduler.stats().preemptions == 1 and rig.scheduler.totals.jumps == 1
    rig.core.add(request(2, [3] * 70, max_tokens=20, priority=9))
    rig.drain()
    assert rig.scheduler.totals.jumps == 1
    assert rig.tokens(0) == truth(rig, low) and rig.tokens(1) == truth(rig, high)


def test_nobody_is_preempted_in_vain() -> None:
    rig = Rig(facts=fake_facts(num_blocks=9), policy="priority", max_num_seqs=4)
    rig.core.add(request(0, [1] * 90, max_tokens=30, priority=0))
    rig.core.add(request(1, [2] * 10, max_tokens=2, priority=9))
    rig.step()
    rig.core.add(request(2, [3] * 60, max_tokens=2, priority=1))
    rig.step()
    assert rig.scheduler.stats().preemptions == 0, "one block of the worse key does not make room for four"
    rig.drain()


@pytest.mark.parametrize("depth", [1, 2])
def test_abort_frees_at_once_in_every_state(depth: int) -> None:
    rig = Rig(depth=depth, chain=depth, max_num_seqs=2, max_num_batched_tokens=16)
    for i in range(4):
        rig.core.add(request(i, [i] * 40, max_tokens=10))
    rig.step(2)
    for i in (3, 1, 0, 2, 77):
        rig.core.abort(i)
        rig.scheduler.check()
    stats = rig.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    rig.drain()
    assert not rig.core.has_work


def test_prompt_logprobs_ask_for_every_row_and_no_hit() -> None:
    rig = Rig(max_num_batched_tokens=16)
    rig.core.add(request(0, [1] * 40, max_tokens=2))
    rig.drain()
    rig.plans.clear()
    rig.core.add(request(1, [1] * 40, max_tokens=2, prompt_logprobs=1))
    rig.drain()
    assert [(row.count, row.rows) for plan in rig.plans for row in plan.seqs] == [(16, 16), (16, 16), (8, 8), (1, 1)]
    scores = [one.chosen.token for output in rig.outputs[1] for one in output.prompt_logprobs or []]
    assert scores == [1] * 39
    assert rig.last(1).cached_tokens == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_the_guilty_request_fails_alone(depth: int) -> None:
    rig = Rig(depth=depth, chain=depth)
    inside: dict[int, int] = {}

    def fail(plan: StepPlan) -> str | None:
        for row in plan.seqs:
            if row.new is not None:
                inside[row.slot] = row.new.seq_id
        return "five is cursed" if 5 in [inside[row.slot] for row in plan.seqs] else None

    rig.executor._fail = fail
    asked = [request(i, [*[1] * 32, i], max_tokens=6) for i in range(8)]
    for one in asked:
        rig.core.add(one)
    rig.drain()
    assert rig.last(5).finish is FinishReason.ERROR and rig.last(5).error == "five is cursed"
    for one in asked:
        assert one.seq_id == 5 or rig.tokens(one.seq_id) == truth(rig, one)
    assert 4 <= rig.scheduler.stats().failed_steps <= 6, "halves of eight"


def test_an_error_that_passes_costs_nobody() -> None:
    errors = ["hiccup"]
    rig = Rig(fail=lambda plan: errors.pop() if plan.step == 3 and errors else None)
    one = request(0, [1] * 20, max_tokens=6)
    rig.core.add(one)
    rig.drain()
    assert rig.tokens(0) == truth(rig, one) and rig.scheduler.stats().failed_steps == 1


def test_checking_the_books_changes_nothing() -> None:
    rig = Rig(fail=lambda plan: "broken")
    for one in (request(0, [1] * 20), request(1, [2] * 20)):
        rig.core.add(one)
    rig.step()
    rig.scheduler.abort(0)
    rig.scheduler.abort(1)
    assert not rig.scheduler.has_work
    before = [*rig.scheduler._suspects._groups]
    rig.scheduler.check()
    assert before and rig.scheduler._suspects._groups == before and not rig.scheduler._suspects.left


def test_a_failed_step_teaches_the_cache_nothing() -> None:
    rig = Rig(fail=lambda plan: "broken")
    rig.core.add(request(0, [1] * 40, max_tokens=2))
    rig.drain()
    assert rig.last(0).finish is FinishReason.ERROR
    assert rig.scheduler.stats().blocks_cached == 0


def test_who_hit_a_block_of_a_failed_step_computes_it_again() -> None:
    guilty, innocent = request(0, [1] * 40, max_tokens=2), request(1, [*[1] * 32, 2, 3, 4], max_tokens=5)
    rig = Rig(fail=lambda plan: "broken" if any(row.new and row.new.seq_id == 0 for row in plan.seqs) else None)
    rig.core.add(guilty)
    rig.core.add(innocent)
    rig.drain()
    assert rig.last(0).finish is FinishReason.ERROR
    assert rig.tokens(1) == truth(rig, innocent)


def test_a_row_that_is_not_finite_fails_alone_and_is_not_cached() -> None:
    rig = Rig()
    rig.core.add(request(0, [1] * 40, max_tokens=3))
    rig.core.add(request(1, [2] * 40, max_tokens=3))
    plan = rig.scheduler.schedule()
    assert plan is not None
    outputs = rig.scheduler.update(StepResult(plan.step, [[9], [9]], failed=[0]))
    assert [(o.seq_id, o.finish, bool(o.error)) for o in outputs] == [(0, FinishReason.ERROR, True), (1, None, False)]
    assert rig.scheduler.stats().blocks_cached == 2
    rig.scheduler.check()


def test_waste_is_the_share_of_slots_without_a_token_over_time() -> None:
    """A pool of one block a sequence: 8 of 16 slots for 3 s, then 15 of 16 for 1 s, then nothing for a year."""
    now = 0.0
    rig = Rig(clock=lambda: now)
    scheduler = rig.scheduler

    def answer(plan: StepPlan | None, after: float) -> None:
        nonlocal now
        assert plan is not None
        now += after
        scheduler.update(StepResult(plan.step, [[9] for _ in plan.seqs]))

    scheduler.add(request(0, [1] * 8, max_tokens=1))
    answer(scheduler.schedule(), after=3.0)
    assert scheduler.stats().waste == 0.5
    now += 5.0  # nothing is held: that counts for nothing
    scheduler.add(request(1, [2] * 15, max_tokens=1))
    answer(scheduler.schedule(), after=1.0)
    assert scheduler.stats().waste == (3 * 8 + 1 * 1) / (4 * 16)
    assert [group.waste for group in scheduler.stats().groups] == [scheduler.stats().waste]
    now += 3e7
    assert scheduler.schedule() is None
    assert scheduler.stats().waste == (3 * 8 + 1 * 1) / (4 * 16)


def test_waste_counts_between_steps_and_until_an_abort() -> None:
    now = 0.0
    rig = Rig(clock=lambda: now)
    scheduler = rig.scheduler
    scheduler.add(request(0, [1] * 12, max_tokens=9))
    plan = scheduler.schedule()
    assert plan is not None
    now += 1.0
    scheduler.update(StepResult(plan.step, [[9]]))
    now += 1.0  # 12 of 16 until the next step is planned
    plan = scheduler.schedule()
    assert plan is not None
    now += 2.0  # 13 of 16
    scheduler.abort(0)
    now += 9.0
    scheduler.update(StepResult(plan.step, [[9]]))
    assert scheduler.stats().waste == (2 * 4 + 2 * 3) / (4 * 16)


def test_reset_forgets_prefixes() -> None:
    rig = Rig()
    rig.core.add(request(0, [1] * 40, max_tokens=30))
    rig.step(3)
    rig.scheduler.reset_prefix_cache()
    assert rig.scheduler.stats().blocks_cached == 0
    rig.drain()
    rig.core.add(request(1, [1] * 40, max_tokens=1))
    rig.drain()
    assert rig.last(1).cached_tokens == 0


def test_a_kind_without_a_class_is_refused() -> None:
    facts = Facts(
        model_name="m",
        architecture="a",
        vocab_size=8,
        model_len=64,
        groups=(KVGroup(name="g", kind="state", layers=1),),
        block_size=16,
        block_bytes=1,
        num_blocks=8,
        eos_ids=(),
    )
    with pytest.raises(ConfigError, match="state"):
        Scheduler(SchedulerConfig(), facts)
