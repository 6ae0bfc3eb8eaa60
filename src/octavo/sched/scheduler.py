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

from octavo.config.policy import POLICIES, Key
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
        self._headroom = Headroom(self.kv, self.caution, self.running)
        self._clock = clock
        self._tell_clamped = Seldom(log, logging.INFO, clock=clock)
        self._seqs: dict[int, Sequence] = {}
        self._slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._freed: list[int] = []
        self._results = Results(
            self.kv,
            self.totals,
            self.caution,
            self.pace,
            retire=self._retire,
            preempt=self._preempt,
            forget_flights=self._forget_flights,
            clear_slots=self._clear_slots,
        )
        self._flights = self._results.flights
        self._suspects = self._results.suspects
        self._step = 0
        self._first: Sequence | None = None
        """Who comes first among the caught-up in the next step: the one this step could not serve."""
        self._prompt_turn = 0
        self._worst: Key | None = None
        """Worst key among the running; None when it must be looked for."""
        self._begin()

    def _begin(self) -> None:
        """Empties what belongs to one plan."""
        self._rows: list[Row] = []
        self._plans: list[SeqPlan] = []
        self._budget = self.config.max_num_batched_tokens
        """Tokens this step may still take; 0 closes it."""
        self._allowance.begin()
        self._preempted = False
        self._may_preempt = True
        self._hopeless: Key | None = None
        """Nobody with this key or a worse one finds room in this step."""
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

    # -- a plan -------------------------------------------------------------------------------------------------------
    def schedule(self) -> StepPlan | None:
        """The next step, or None while nothing can be planned (all wait for steps in flight, or there is no work)."""
        self.kv.lasted(self._clock())
        if self._suspects:
            return self._schedule_trial()
        while self._seqs:
            self._begin()
            self._wake()
            self._jump_queue()
            prompts = self._plan_caught_up()
            if self._budget:
                self._allowance.close_decodes(decoding=bool(self._rows) or any(f.decodes for f in self._flights))
                self._plan_prompts(prompts)
            if self._rows:
                return self._commit(trial=False)
            if not self._preempted:
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
        freed, self._freed = self._freed, []
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
            if not self._make_room(seq):
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
        while self._budget and self._slots and not self._preempted:
            self._wake()
            seq = self.queue.peek()
            if seq is None or self._headroom.is_blocked(seq):
                return
            hit = self.kv.lookup(seq)
            if self._is_promised(seq, hit):
                assert hit.missing is not None
                self.queue.remove(seq)
                self.kv.promises.park(seq, hit.missing)
                self.totals.parked += 1
                continue
            if self._headroom.shortage(seq, hit) + self._headroom.reserve(seq) > 0:
                self._headroom.block(seq, hit)
                return
            self._place(seq, hit)
            self._may_preempt = False
            self._give(seq, len(seq.tokens) - seq.computed)

    def _place(self, seq: Sequence, hit: Hit) -> None:
        """From the queue to a slot, with its hit."""
        self.queue.remove(seq)
        self.kv.attach(seq, hit)
        seq.slot = self._slots.pop()
        self.running[seq] = None
        self._worst = None
        seq.landed = hit.length
        self._headroom.adjust(self.kv.owing(seq, len(seq.tokens)))
        totals = self.totals
        totals.redone += max(0, seq.reached - hit.length)
        if seq.cached_tokens < 0:
            seq.cached_tokens = hit.length
            seq.queued_s = max(0.0, self._clock() - seq.request.arrival)
            totals.prompt += seq.num_prompt
            if self.kv.caching:
                totals.prefix_queries += seq.num_prompt
                totals.prefix_hits += hit.length

    def _is_promised(self, seq: Sequence, hit: Hit) -> bool:
        """True where somebody who is served no later than `seq` is about to compute what it lacks."""
        if hit.missing is None:
            return False
        promiser = self.kv.promises.promiser(hit.missing)
        return promiser is not None and promiser.level <= seq.level

    # -- preemption ---------------------------------------------------------------------------------------------------
    def _jump_queue(self) -> None:
        """Lets the head of the queue preempt strictly worse keys, if that makes room; it is admitted later."""
        seq = self.queue.peek()
        if seq is None or not self.running or self._headroom.is_blocked(seq):
            return
        if self._worst is None:
            self._worst = max(other.key for other in self.running)
        if seq.key > self._worst:
            return
        hit = self.kv.lookup(seq)
        if self._is_promised(seq, hit):
            return
        shortage = self._headroom.shortage(seq, hit)
        self._headroom.recount()
        if shortage <= 0 and self._slots:
            return
        victims = sorted((v for v in self.running if v.key > seq.key), reverse=True)
        number = self.kv.victims_needed(victims, enough=shortage, hit=hit, owed=True)
        if not number:
            self._headroom.block(seq, hit)
            return
        self.totals.jumps += 1
        for victim in victims[:number]:
            self._preempt(victim)

    def _make_room(self, seq: Sequence) -> bool:
        """Preempts for one more position of `seq`: worst keys first, worse than its own, not planned in this step.

        Nobody is preempted unless that is enough.
        """
        if not self._may_preempt or (self._hopeless is not None and seq.key >= self._hopeless):
            return False
        step = self._step + 1
        idle = [other for other in self.running if other.last_step != step]
        for other in idle:
            self.kv.drop_behind(other)
        if self.kv.room(seq) > 0:
            return True
        victims = sorted((v for v in idle if v.key > seq.key), reverse=True)
        missing = self.kv.lacking(seq, seq.computed + 1) - self.kv.pool.free
        number = self.kv.victims_needed(victims, enough=missing)
        if not number:
            self._hopeless = seq.key
            return False
        self.caution.alarm()
        for victim in victims[:number]:
            self._preempt(victim)
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Back to the queue without its blocks; tokens in flight are lost and will be sampled equal."""
        self._preempted = True
        self.totals.preemptions += 1
        seq.reached = min(seq.computed, len(seq.tokens))
        self._leave(seq)
        self.queue.push(seq)

    def _leave(self, seq: Sequence) -> None:
        """Gives up slot and blocks."""
        self.kv.release(seq)
        del self.running[seq]
        self._worst = None
        self._headroom.unblock()
        self._freed.append(seq.slot)
        self._slots.append(seq.slot)
        seq.slot = -1
        self._forget_flights(seq)

    def _forget_flights(self, seq: Sequence) -> None:
        seq.epoch += 1
        seq.pending = seq.inflight = 0
        seq.decode_plan = None

    def _retire(self, seq: Sequence) -> None:
        seq.done = True
        del self._seqs[seq.seq_id]
        if seq.slot >= 0:
            self._leave(seq)
        elif seq.queued:
            self.queue.remove(seq)

    # -- results ------------------------------------------------------------------------------------------------------
    def update(self, result: StepResult) -> list[SeqOutput]:
        """Takes the answer to the oldest plan in flight; gives what each sequence got, and who ended."""
        self.kv.lasted(self._clock())
        return self._results.take(result)

    def _clear_slots(self, slots: list[int]) -> None:
        """The workers must forget these before the next plan's rows, and before slots freed since."""
        self._freed = list(dict.fromkeys(slots + self._freed))

    def _schedule_trial(self) -> StepPlan | None:
        """A step of one group of suspects and nobody else; None while other steps are in flight."""
        if self._flights:
            return None
        while group := self._suspects.next():
            self._begin()
            self._may_preempt = False
            for seq in group:
                if self._budget and (seq.slot >= 0 or self._place_suspect(seq)):
                    self._give(seq, len(seq.tokens) - seq.computed)
            if self._rows:
                return self._commit(trial=True)
            if not self._clear_the_way(group):
                self._suspects.pop()
        return self.schedule()

    def _clear_the_way(self, group: list[Sequence]) -> bool:
        """Preempts the worst of those who hold what a group lacks for its trial; False where nobody else runs.

        A group that went without its trial would fail the next ordinary step too, and the one after it.
        """
        others = [seq for seq in self.running if seq is not group[0]]
        if not others:
            return False
        self._preempt(max(others, key=lambda seq: (seq not in group, seq.key)))
        return True

    def _place_suspect(self, seq: Sequence) -> bool:
        """A suspect that lost its place comes back if there is room now."""
        self._wake()
        if not self._slots or not seq.queued:
            return False
        hit = self.kv.lookup(seq)
        if self._headroom.shortage(seq, hit) > 0:
            return False
        self._place(seq, hit)
        return True

    # -- numbers ------------------------------------------------------------------------------------------------------
    def stats(self) -> SchedulerStats:
        """A snapshot; costs nothing that grows."""
        running = len(self.running)
        return snapshot(self.kv, self.totals, running=running, waiting=len(self._seqs) - running)

    def check(self) -> None:
        """Raises AssertionError where the books do not agree or, when idle, where anything is left over. For tests."""
        self.kv.check(self.running)
        assert len(self.running) + len(self._slots) == self.config.max_num_seqs
        slots = [seq.slot for seq in self.running]
        assert len({*slots, *self._slots}) == self.config.max_num_seqs
        if not self.has_work:
            assert self.kv.pool.free == self.kv.pool.total
            assert not self.running and not len(self.queue) and not self._suspects.left
            assert self.kv.held == self.kv.allocated == 0
            self.kv.promises.check_idle()
