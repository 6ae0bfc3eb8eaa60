"""Random traffic through a scheduler and the fake executor, judged against each sequence alone.

A `Case` is a scheduler and its surroundings; the traffic comes from its seed. `run` plays it to the end and adds to a
`Counter` what happened, so that a test can see that the interesting things did happen.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from octavo.config.policy import PolicyName
from octavo.config.scheduler import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.fake import FakeExecutor, fake_answer, fake_facts
from octavo.facts import peak_blocks
from octavo.sched.kv import Hit
from octavo.sched.load import Load
from octavo.sched.refused import Refused
from octavo.sched.scheduler import Scheduler
from octavo.sched.sequence import Sequence
from octavo.types import FinishReason, Request, SamplingParams, SeqOutput, StepPlan, StepResult

LONGEST = 20 + 12 + 25
"""Tokens of the longest sequence the traffic holds."""
MAX_STEPS = 6_000


@dataclass(frozen=True)
class Case:
    seed: int
    block_size: int
    pool: str
    """"tight" (the longest sequence just fits), "small" (two fit), "ample", or "short" (the longest does not fit)."""
    budget: int
    max_seqs: int
    depth: int
    chain: int
    drafts: int
    caching: bool
    threshold: int
    policy: PolicyName
    windows: tuple[int | None, ...]
    """Of each KV group; None: a full one."""
    faults: str
    """"none", "steps" (any step may fail), "guilty" (a certain request always fails), "rows" (a row fails alone)."""
    aborts: bool
    pace: str = "none"
    """"none" (no target of time), "honest" (steps take what the pace learns), "mad" (answers and times at random)."""

    @property
    def num_blocks(self) -> int:
        chunk = max(min(self.threshold or self.budget, self.budget), self.chain * (1 + self.drafts))
        groups = fake_facts(windows=self.windows).groups
        one = peak_blocks(groups, LONGEST, block_size=self.block_size, chunk=chunk)
        few = peak_blocks(groups, LONGEST // 2, block_size=self.block_size, chunk=chunk)
        return {"short": max(len(groups), few), "tight": one, "small": 2 * one, "ample": 8 * one}[self.pool] + 1


@dataclass
class Stream:
    request: Request
    tokens: list[int] = field(default_factory=list)
    scores: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    aborted: bool = False
    known: int = 0


def make_requests(rng: random.Random) -> list[Request]:
    shared = [rng.randrange(50) for _ in range(20)]
    requests = []
    for i in range(rng.randint(1, 8)):
        prompt = shared[: rng.choice([0, 20, rng.randint(0, 20)])] + [
            rng.randrange(50) for _ in range(rng.randint(1, 12))
        ]
        most = rng.choice([1, rng.randint(1, 25), 25])
        params = SamplingParams(
            max_tokens=most,
            min_tokens=rng.choice([0, 0, rng.randint(0, most)]),
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.randrange(3),
            ignore_eos=rng.random() < 0.6,
            stop_token_ids=rng.choice([(), (), (3, 5)]),
            logprobs=rng.choice([None, None, None, 2]),
            prompt_logprobs=rng.choice([None] * 7 + [1]),
        )
        requests.append(
            Request(
                i,
                array("i", prompt).tobytes(),
                params,
                arrival=float(rng.choice([i, i, rng.randrange(8)])),
                priority=rng.randrange(3),
                root=rng.choice([b"", b"", b"tenant"]),
            )
        )
    return requests


class MadPace:
    """Answers anything, from nothing to hours: plans must stay right however wrong times are."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.learned = 0

    def seconds(self, load: Load) -> float:
        return self._rng.choice([0.0, 1e-6, 0.01, 1.0, 1e4])

    def learn(self, load: Load, seconds: float) -> None:
        self.learned += 1


class Watched(FakeExecutor):
    """The fake, checking each plan against the rules on its way in, and failing steps on order."""

    def __init__(self, case: Case, rng: random.Random, counts: Counter[str]) -> None:
        facts = fake_facts(num_blocks=case.num_blocks, block_size=case.block_size, windows=case.windows)
        super().__init__(facts, fail=self.fails, fail_rows=self.bad_rows, seconds=self.takes)
        self.case, self.rng, self.counts = case, rng, counts
        self.guilty = rng.randrange(8) if case.faults in ("guilty", "rows") else -1
        self.seq_of: dict[int, int] = {}
        self.in_flight: list[set[int]] = []
        self.members: dict[int, list[int]] = {}

    def submit(self, plan: StepPlan) -> None:
        case, members = self.case, []
        assert plan.seqs and len(plan.seqs) <= case.max_seqs
        assert plan.num_tokens <= case.budget, "over the budget"
        for slot in plan.freed_slots:
            self.seq_of.pop(slot, None)
        for row in plan.seqs:
            assert row.count > 0
            if row.new is not None:
                assert row.slot not in self.seq_of, "a slot in use was given away"
                self.seq_of[row.slot] = row.new.seq_id
                self.counts["hit"] += row.new.computed > 0
                self.counts["hit behind a window"] += any(new[:1] == [0] for new in row.new_blocks)
                self.counts["resumed"] += len(row.new.token_ids) > 4 * row.new.num_prompt
            members.append(self.seq_of[row.slot])
            if case.threshold:
                assert row.count - row.draft <= case.threshold, "over the threshold of a prompt"
            self.counts["chunk"] += row.rows == 0
            self.counts["wide"] += row.rows > 1 + row.draft
        assert len(set(members)) == len(members), "a sequence twice in a step"
        for seq_id in members:
            flying = sum(seq_id in flight for flight in self.in_flight)
            assert flying < case.chain or self.restarted(seq_id), "more steps of a sequence in flight than chain"
            self.counts["chained"] += flying > 0
        self.counts["mixed"] += any(r.rows == 0 for r in plan.seqs) and any(r.rows for r in plan.seqs)
        self.members[plan.step] = members
        self.in_flight.append(set(members))
        self.counts["overlapped"] += len(self.in_flight) > 1
        super().submit(plan)

    def restarted(self, seq_id: int) -> bool:
        """It lost its place with a step in flight whose result nobody takes: that step does not count for the chain."""
        return bool(self.counts["preempted"] or self.counts["step failed"])

    def collect(self) -> StepResult:
        self.in_flight.pop(0)
        return super().collect()

    def takes(self, plan: StepPlan) -> float:
        """A third of a millisecond a token and two a step, unless times mean nothing."""
        if self.case.pace == "mad":
            return float(self.rng.choice([0.0, 1e-9, 0.003, 5.0, 1e5]))
        return 0.002 + 0.00033 * plan.num_tokens if self.case.pace == "honest" else 0.0

    def fails(self, plan: StepPlan) -> str | None:
        if self.case.faults == "steps" and self.rng.random() < 0.1:
            return "out of luck"
        if self.case.faults == "guilty" and self.guilty in self.members[plan.step]:
            return "the guilty one is here"
        return None

    def bad_rows(self, plan: StepPlan) -> list[int]:
        if self.case.faults != "rows":
            return []
        return [i for i, seq_id in enumerate(self.members[plan.step]) if seq_id == self.guilty]


class Play:
    """One case from the first arrival to the last answer."""

    def __init__(self, case: Case, counts: Counter[str]) -> None:
        self.case, self.counts = case, counts
        self.rng = random.Random(case.seed)
        self.executor = Watched(case, self.rng, Counter())
        config = SchedulerConfig(
            max_num_seqs=case.max_seqs,
            max_num_batched_tokens=case.budget,
            long_prefill_token_threshold=case.threshold,
            enable_prefix_caching=case.caching,
            policy=case.policy,
            chain=case.chain,
            num_drafts=case.drafts,
            hash_key=b"tests",
            target_itl_ms=0.0 if case.pace == "none" else self.rng.choice([0.001, 5.0, 9.0, 1e6]),
        )
        pace = MadPace(self.rng) if case.pace == "mad" else None
        self.scheduler = Scheduler(config, self.executor.facts, clock=lambda: 100.0, pace=pace)
        self.core = EngineCore(self.scheduler, self.executor, depth=case.depth)
        self.streams: dict[int, Stream] = {}
        self.watch_schedule()

    def watch_schedule(self) -> None:
        """Checks what only the scheduler knows: nobody is admitted in a step that preempted."""
        inner, totals = self.scheduler.schedule, self.scheduler.totals

        def schedule() -> StepPlan | None:
            preempted, failing = totals.preemptions, bool(self.scheduler._suspects)
            known = set(self.executor.seq_of.values())
            plan = inner()
            if plan is not None and totals.preemptions > preempted and not failing and not totals.failed_steps:
                new = [row.new.seq_id for row in plan.seqs if row.new is not None]
                lost = known - {seq.seq_id for seq in self.scheduler.running}
                assert not lost & set(new), "preempted and admitted again in one plan"
            self.executor.counts["preempted"] = totals.preemptions
            return plan

        place = self.scheduler._place

        def placed(seq: Sequence, hit: Hit) -> None:
            assert not self.scheduler.preemption.happened, "admitted in a step that preempted"
            place(seq, hit)

        torn, lookup = self.scheduler.kv.torn, self.scheduler.kv.lookup

        def tears(seq: Sequence) -> bool:
            found = torn(seq)
            self.counts["failed behind a window"] += found
            return found

        def looked(seq: Sequence) -> Hit:
            hit = lookup(seq)
            assert {len(table) * self.case.block_size for table in hit.blocks} == {hit.length}
            self.counts["hit cut by a window"] += self.is_cut(seq, hit)
            return hit

        scheduler: Any = self.scheduler
        scheduler.kv.torn, scheduler.kv.lookup = tears, looked
        scheduler.schedule, scheduler._place = schedule, placed

    def is_cut(self, seq: Sequence, hit: Hit) -> bool:
        """A full group knows more than what a window group has the last positions of."""
        kv, at = self.scheduler.kv, hit.length // self.case.block_size
        if None not in self.case.windows or hit.missing is None or (at + 1) * self.case.block_size >= len(seq.tokens):
            return False
        return kv.knows(kv.hasher.name(seq, at))

    def run(self) -> None:
        arrivals = make_requests(self.rng)
        steps = 0
        while arrivals or self.core.has_work:
            for _ in range(self.rng.choice([0, 1, 3, 8])):
                if arrivals:
                    self.add(arrivals.pop(0), late=steps > 0)
            if self.case.aborts and self.rng.random() < 0.15:
                self.abort()
            if self.case.caching and self.rng.random() < 0.01:
                self.scheduler.reset_prefix_cache()
                self.counts["cache reset"] += 1
            for output in self.core.step():
                self.take(output)
            self.scheduler.check()
            self.executor.counts["step failed"] = self.scheduler.totals.failed_steps
            steps += 1
            assert steps < MAX_STEPS, "no progress"
        self.judge()
        self.count()

    def add(self, request: Request, *, late: bool) -> None:
        refused = self.core.add(request)
        num_prompt = len(request.prompt_ids) // 4
        fits = num_prompt < self.scheduler.intake.longest
        assert (refused is None) == fits, "refused what fits, or took what never can"
        if isinstance(refused, Refused):
            assert refused.kind == "too_long" and str(num_prompt) in refused.message
            self.counts["refused"] += 1
            return
        self.streams[request.seq_id] = Stream(request)
        self.counts["late arrival"] += late

    def abort(self) -> None:
        seq_id = self.rng.randrange(8)
        stream = self.streams.get(seq_id)
        seq = self.scheduler._seqs.get(seq_id)
        if seq is not None:
            state = (
                "in flight" if seq.inflight else "running" if seq.slot >= 0 else "queued" if seq.queued else "parked"
            )
            self.counts[f"abort {state}"] += 1
        self.core.abort(seq_id)
        if stream is not None and stream.finish is None:
            stream.aborted = True

    def take(self, output: SeqOutput) -> None:
        stream = self.streams[output.seq_id]
        assert stream.finish is None and not stream.aborted, "output of a sequence that had ended"
        assert output.new_ids or output.finish or output.prompt_logprobs, "an empty output"
        if output.new_ids and not stream.tokens:
            assert output.queued_s > 0
        stream.tokens += output.new_ids
        stream.finish, stream.error = output.finish, output.error
        params = stream.request.params
        if params.logprobs is not None:
            assert [one.chosen.token for one in output.logprobs or []] == output.new_ids
        if output.finish is FinishReason.STOP:
            assert output.stop_token == output.new_ids[-1]
        stream.scores += [one.chosen.token for one in output.prompt_logprobs or []]

    def judge(self) -> None:
        facts, limit = self.executor.facts, self.scheduler.intake.longest
        for seq_id, stream in self.streams.items():
            truth = fake_answer(stream.request, facts=facts, limit=limit)
            if stream.aborted or stream.finish is FinishReason.ERROR:
                assert stream.tokens == truth[: len(stream.tokens)], (seq_id, stream.tokens, truth)
            else:
                assert stream.finish is not None, f"sequence {seq_id} never ended"
                assert stream.tokens == truth, (seq_id, stream.tokens, truth)
                if stream.request.params.prompt_logprobs is not None:
                    prompt = array("i", stream.request.prompt_ids).tolist()
                    assert stream.scores == prompt[1:], "prompt logprobs lost or given twice"
            if stream.finish is FinishReason.ERROR:
                assert seq_id == self.executor.guilty or self.case.faults == "steps", "an innocent request failed"
                assert stream.error
            elif self.case.faults in ("guilty", "rows") and seq_id == self.executor.guilty:
                assert stream.aborted, "the guilty request did not fail"

    def count(self) -> None:
        stats, totals = self.scheduler.stats(), self.scheduler.totals
        assert stats.blocks_used == 0 and stats.running == stats.waiting == 0
        assert stats.draft_tokens >= max(stats.drafts, stats.accepted_drafts)
        assert (stats.drafts > 0) == (stats.draft_tokens > 0)
        counts = self.counts
        counts["cases"] += 1
        counts.update({k: v for k, v in self.executor.counts.items() if k not in ("preempted", "step failed")})
        counts["preempted"] += stats.preemptions
        counts["freed behind a window"] += self.scheduler.kv.dropped
        counts["jumped the queue"] += totals.jumps
        counts["parked"] += totals.parked
        counts["draft accepted"] += stats.accepted_drafts
        counts["draft rejected"] += stats.draft_tokens - stats.accepted_drafts
        counts["step failed"] += stats.failed_steps
        counts["clamped"] += stats.clamped
        counts["cut by time"] += stats.steps_cut
        for stream in self.streams.values():
            counts[f"finish {stream.finish}"] += 1
            counts["failed alone"] += stream.finish is FinishReason.ERROR and self.case.faults == "rows"
            counts["failed of many"] += stream.finish is FinishReason.ERROR and self.case.faults == "guilty"
            counts["scored"] += bool(stream.scores)


EXPECTED = (
    *("hit", "resumed", "chunk", "wide", "chained", "mixed", "overlapped", "preempted", "parked", "clamped", "refused"),
    *("jumped the queue", "draft accepted", "draft rejected", "step failed", "failed alone", "failed of many"),
    *("late arrival", "cache reset", "abort in flight", "abort running", "abort queued", "abort parked"),
    *("freed behind a window", "hit behind a window", "hit cut by a window", "failed behind a window"),
    *("finish stop", "finish length", "finish error", "scored", "cut by time"),
)
"""What must have happened at least once over all cases."""
