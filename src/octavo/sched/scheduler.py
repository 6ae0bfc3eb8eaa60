"""One rule: give each sequence tokens until `computed` catches up with what is known.

Prefill, decode, chunks, prefix hits, drafts, preemption and resumption are that rule with other numbers:

    todo = len(tokens) + pending - computed          1: caught up, it decodes; more: a prompt, or lost KV

A step is planned in this order: who waits with a better key than somebody who runs may preempt; one token for each
caught-up sequence, then their drafts; then prompts and admissions, in turns. Nobody is admitted in a step that
preempted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from octavo.config.policy import POLICIES
from octavo.config.scheduler import SchedulerConfig
from octavo.facts import UNKNOWN_COST, Facts
from octavo.obs.log import Seldom
from octavo.sched.allowance import Allowance
from octavo.sched.caution import Caution
from octavo.sched.flight import Flight, Row
from octavo.sched.headroom import Headroom
from octavo.sched.intake import Intake
from octavo.sched.kv import Hit, KVManager
from octavo.sched.pace import LearnedPace, Pace
from octavo.sched.places import Places
from octavo.sched.preempt import Preemption
from octavo.sched.queue import WaitingQueue
from octavo.sched.refused import Refused
from octavo.sched.results import Results
from octavo.sched.sequence import Sequence
from octavo.sched.snapshot import snapshot
from octavo.sched.stats import SchedulerStats
from octavo.sched.totals import Totals
from octavo.types import NewSeq, Request, SeqOutput, SeqPlan, StepPlan, StepResult

log = logging.getLogger(__name__)


class Scheduler:
    """Requests in, plans out, results in, outputs out. One thread; no arrays; nothing here waits.

    Every plan that `schedule` returns must be answered by `update`, in order.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        facts: Facts,
        *,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
    ) -> None:
        """`pace`: how long steps take; None learns it from `StepResult.seconds`."""
        self.config = config
        self.pace = pace if pace is not None else LearnedPace(facts.step_cost or UNKNOWN_COST)
        self._allowance = Allowance(facts.groups, self.pace, target=config.target_itl_ms / 1e3)
        self._prompt_limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self.kv = KVManager(facts, caching=config.enable_prefix_caching, hash_key=config.hash_key, chunk=config.chunk)
        policy = POLICIES[config.policy]
        self.intake = Intake(facts, kv=self.kv, policy=policy, max_model_len=config.max_model_len)
        self.queue = WaitingQueue()
        self.running: dict[Sequence, None] = {}
        """Those with a slot, in order of admission."""
        self.totals = Totals()
        self.caution = Caution()
        self._headroom = headroom = Headroom(self.kv, self.caution, self.running)
        self._places = Places(config.max_num_seqs, self.kv, headroom, self.running)
        self.preemption = Preemption(self.kv, self.queue, self._places, headroom, self.caution, self.totals)
        self._clock = clock
        self._tell_clamped = Seldom(log, logging.INFO, clock=clock)
        self._seqs: dict[int, Sequence] = {}
        self._results = Results(
            self.kv,
            self.totals,
            self.caution,
            self.pace,
            retire=self._retire,
            preempt=self.preemption.preempt,
            clear_slots=self._places.clear,
        )
        self._flights = self._results.flights
        self._suspects = self._results.suspects
        self._step = 0
        self._first: Sequence | None = None
        """Who comes first among the caught-up in the next step: the one this step could not serve."""
        self._prompt_turn = 0
        self._begin()

    def _begin(self, *, trial: bool = False) -> None:
        """Empties what belongs to one plan."""
        self._rows: list[Row] = []
        self._plans: list[SeqPlan] = []
        self._budget = self.config.max_num_batched_tokens
        """Tokens this step may still take; 0 closes it."""
        self._allowance.begin()
        self.preemption.begin(trial=trial)
        self._headroom.recount()

    # -- requests -----------------------------------------------------------------------------------------------------
    @property
    def has_work(self) -> bool:
        """True while a sequence is not done or a step has not been answered."""
        return bool(self._seqs or self._flights)

    def add(self, request: Request) -> Refused | None:
        """Takes a request into the queue, or says why it can never be served. Its answer is cut to what can be held."""
        if request.seq_id in self._seqs:
            return Refused(request.seq_id, "invalid", f"seq_id: got {request.seq_id}, which is in use")
        seq = self.intake.sequence(request)
        if isinstance(seq, Refused):
            return seq
        if self.intake.clamps(seq):
            self.totals.clamped += 1
            self._tell_clamped(
                "max_tokens: got %s, cut to %d after a prompt of %d tokens: %s",
                request.params.max_tokens,
                seq.limit - seq.num_prompt,
                seq.num_prompt,
                self.intake.bound,
            )
        self._seqs[request.seq_id] = seq
        self.queue.push(seq)
        return None

    def abort(self, seq_id: int) -> None:
        """Forgets a sequence, wherever it is; its blocks are free at once. Unknown ids are ignored."""
        seq = self._seqs.get(seq_id)
        if seq is not None:
            self.kv.lasted(self._clock())
            self._retire(seq)

    def reset_prefix_cache(self) -> None:
        """Forgets every known prefix. Sequences that hit one keep it."""
        self.kv.pool.reset()

    def _retire(self, seq: Sequence) -> None:
        seq.done = True
        del self._seqs[seq.seq_id]
        if seq.slot >= 0:
            self._places.leave(seq)
        elif seq.queued:
            self.queue.remove(seq)

    # -- a plan -------------------------------------------------------------------------------------------------------
    def schedule(self) -> StepPlan | None:
        """The next step, or None while nothing can be planned (all wait for steps in flight, or there is no work)."""
        self.kv.lasted(self._clock())
        if self._suspects:
            return self._schedule_trial()
        while self._seqs:
            self._begin()
            self._wake()
            self.preemption.jump_queue()
            prompts = self._plan_caught_up()
            if self._budget:
                self._allowance.close_decodes(decoding=bool(self._rows) or any(f.decodes for f in self._flights))
                self._plan_prompts(prompts)
            if self._rows:
                return self._commit(trial=False)
            if not self.preemption.happened:
                break
        return None

    def _commit(self, *, trial: bool) -> StepPlan:
        self._step += 1
        load = self._allowance.load
        planned = load.tokens
        self.totals.steps += 1
        self.totals.cut += self._allowance.cut
        self.totals.computed += planned
        self.kv.planned(planned)
        freed = self._places.freed()
        self._flights.append(Flight(self._step, self._rows, freed, load, self._allowance.seconds, trial))
        return StepPlan(self._step, self._plans, freed)

    def _plan_caught_up(self) -> list[Sequence]:
        """A token for each sequence that is caught up. Returns the others that can be given tokens: prompts."""
        rows, plans, prompts = self._rows, self._plans, []
        chain, budget, step, publish = self.config.chain, self._budget, self._step + 1, self.kv.publish
        order = self._in_turn()
        spare = self._spare_for_drafts(order) if self.config.num_drafts else 0
        stuck: Sequence | None = None
        plain = positions = 0
        for seq in order:
            if seq.inflight >= chain or seq.slot < 0:
                continue
            total = len(seq.tokens) + seq.pending
            if total - seq.computed != 1:
                prompts.append(seq)
            elif total >= seq.limit:
                continue  # all it may still sample is in flight
            elif not budget:
                stuck = None
                self._first = seq
                break
            elif not spare and seq.computed < seq.capacity and seq.decode_plan is not None and not seq.scores_prompt:
                seq.computed += 1
                seq.pending += 1
                seq.inflight += 1
                seq.last_step = step
                rows.append((seq, seq.decode_plan, seq.epoch, 1))
                plans.append(seq.decode_plan)
                budget -= 1
                plain += 1
                positions += seq.computed
                if seq.computed >= seq.next_full:
                    publish(seq, step)
            else:
                drafts = max(0, min(self.config.num_drafts, spare, seq.limit - total - 1))
                self._budget = budget
                if self._give(seq, 1, drafts=drafts):
                    spare -= budget - self._budget - 1
                elif stuck is None or seq.key < stuck.key:
                    stuck = seq
                budget = self._budget
        self._budget = budget
        self._allowance.decode(plain, positions)
        if stuck is not None:
            self._first = stuck
        return prompts

    def _in_turn(self) -> list[Sequence]:
        """The running, beginning with whom the last step could not serve."""
        order = list(self.running)
        first, self._first = self._first, None
        if first is not None and first.slot >= 0:
            at = order.index(first)
            order = order[at:] + order[:at]
        return order

    def _spare_for_drafts(self, order: list[Sequence]) -> int:
        """What the budget leaves for drafts when each caught-up sequence has its token."""
        chain = self.config.chain
        caught_up = 0
        for seq in order:
            total = len(seq.tokens) + seq.pending
            caught_up += seq.inflight < chain and total - seq.computed == 1 and total < seq.limit
        return max(0, self._budget - caught_up)

    def _plan_prompts(self, prompts: list[Sequence]) -> None:
        """Prompts and the queue take turns at being first, so that a newcomer is not behind a long prompt for ever."""
        head = self.queue.peek()
        turns: list[Sequence | None] = [*prompts, None] if head is not None else [*prompts]
        if len(turns) > 1:
            at = self._prompt_turn % len(turns)
            turns = turns[at:] + turns[:at]
            waiting = head.level if head is not None else 0
            turns.sort(key=lambda seq: waiting if seq is None else seq.level)
        for seq in turns:
            if not self._budget:
                self._prompt_turn += 1
                return
            if seq is None:
                self._admit()
            elif seq.slot >= 0:
                self._give(seq, len(seq.tokens) + seq.pending - seq.computed)
        self._admit()

    def _give(self, seq: Sequence, todo: int, *, drafts: int = 0) -> bool:
        """Plans up to `todo` tokens and `drafts` for a sequence with a slot. False when it gets none."""
        count = self._allowance.fit(seq.computed, min(todo, self._prompt_limit, self._budget), scored=seq.wants_scores)
        self.kv.drop_behind(seq)
        room = self.kv.room(seq)
        if room <= 0:
            if not self.preemption.make_room(seq, self._step + 1):
                return False
            room = self.kv.room(seq)
        count = self.kv.cut(seq, min(count, room))
        if count <= 0:
            return False
        drafts = min(drafts, room - count)
        self._plan_row(seq, count, drafts=drafts, sampled=1 + drafts if count == todo else 0)
        if self._allowance.spent(seq.computed):
            self._budget = 0
        return True

    def _plan_row(self, seq: Sequence, count: int, *, drafts: int, sampled: int) -> None:
        kv, start, count, step = self.kv, seq.computed, count + drafts, self._step + 1
        before = kv.owing(seq, len(seq.tokens) + seq.pending)
        new_blocks = kv.grow(seq, start + count)
        new = None
        if seq.decode_plan is None:
            params = seq.request.params
            new = NewSeq(seq.seq_id, seq.tokens.tobytes(), seq.num_prompt, start, params)
            new_blocks = [[block.id for block in table] for table in seq.tables]
            seq.decode_plan = SeqPlan(seq.slot, 1, 1, 0, kv.nothing)
        rows = count if seq.wants_scores and start < seq.num_prompt - 1 else sampled
        plan = SeqPlan(seq.slot, count, rows, drafts, new_blocks, new)
        self._rows.append((seq, plan, seq.epoch, sampled))
        self._plans.append(plan)
        self._budget -= count
        self._allowance.add(start, count, rows=rows)
        self.totals.drafts += drafts > 0
        self.totals.drafted += drafts
        seq.computed += count
        seq.pending += sampled
        seq.inflight += 1
        seq.last_step = step
        if seq.computed >= seq.next_full:
            kv.publish(seq, step)
        if not sampled:
            kv.promise(seq)
        self._headroom.adjust(kv.owing(seq, len(seq.tokens) + seq.pending) - before)

    # -- admission ----------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        for seq in self.kv.promises.woken():
            if not seq.done:
                self.queue.push(seq)

    def _admit(self) -> None:
        """Admits from the head of the queue, whole prompts only, until one does not fit."""
        while self._budget and self._places.free and not self.preemption.happened:
            self._wake()
            seq = self.queue.peek()
            if seq is None or self._headroom.is_blocked(seq):
                return
            hit = self.kv.lookup(seq)
            if hit.missing is not None and self.kv.promises.is_promised(seq, hit.missing):
                self.queue.remove(seq)
                self.kv.promises.park(seq, hit.missing)
                self.totals.parked += 1
                continue
            if self._headroom.shortage(seq, hit) + self._headroom.reserve(seq) > 0:
                self._headroom.block(seq, hit)
                return
            self._place(seq, hit)
            self.preemption.may_make_room = False
            self._give(seq, len(seq.tokens) - seq.computed)

    def _place(self, seq: Sequence, hit: Hit) -> None:
        """From the queue to a slot, with its hit."""
        self.queue.remove(seq)
        self.kv.attach(seq, hit)
        self._places.take(seq)
        seq.landed = hit.length
        self._headroom.adjust(self.kv.owing(seq, len(seq.tokens)))
        totals = self.totals
        totals.redone += max(0, seq.reached - hit.length)
        if seq.cached_tokens < 0:
            seq.cached_tokens = hit.length
            seq.queued_s = max(0.0, self._clock() - seq.request.arrival)
            if self.kv.caching:
                totals.prefix_queries += seq.num_prompt
                totals.prefix_hits += hit.length

    # -- trials -------------------------------------------------------------------------------------------------------
    def _schedule_trial(self) -> StepPlan | None:
        """A step of one group of suspects and nobody else; None while other steps are in flight."""
        if self._flights:
            return None
        while group := self._suspects.next():
            self._begin(trial=True)
            for seq in group:
                if self._budget and (seq.slot >= 0 or self._place_suspect(seq)):
                    self._give(seq, len(seq.tokens) - seq.computed)
            if self._rows:
                return self._commit(trial=True)
            if not self.preemption.clear_the_way(group):
                self._suspects.pop()
        return self.schedule()

    def _place_suspect(self, seq: Sequence) -> bool:
        """A suspect that lost its place comes back if there is room now."""
        self._wake()
        if not self._places.free or not seq.queued:
            return False
        hit = self.kv.lookup(seq)
        if self._headroom.shortage(seq, hit) > 0:
            return False
        self._place(seq, hit)
        return True

    # -- results ------------------------------------------------------------------------------------------------------
    def update(self, result: StepResult) -> list[SeqOutput]:
        """Takes the answer to the oldest plan in flight; gives what each sequence got, and who ended."""
        self.kv.lasted(self._clock())
        return self._results.take(result)

    # -- numbers ------------------------------------------------------------------------------------------------------
    def stats(self) -> SchedulerStats:
        """A snapshot; costs nothing that grows."""
        running = len(self.running)
        return snapshot(self.kv, self.totals, running=running, waiting=len(self._seqs) - running)

    def check(self) -> None:
        """Raises AssertionError where the books do not agree or, when idle, where anything is left over. For tests."""
        self.kv.check(self.running)
        self._places.check()
        if not self.has_work:
            assert self.kv.pool.free == self.kv.pool.total
            assert not self.running and not len(self.queue) and not self._suspects.left
            assert self.kv.held == self.kv.allocated == 0
            self.kv.promises.check_idle()
