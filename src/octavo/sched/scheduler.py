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
from collections import deque
from collections.abc import Callable

from octavo.config.scheduler import SchedulerConfig
from octavo.facts import Facts
from octavo.sched.caution import Caution
from octavo.sched.flight import Flight, Row
from octavo.sched.intake import Intake
from octavo.sched.kv import Hit, KVManager
from octavo.sched.queue import WaitingQueue, make_policy
from octavo.sched.refused import Refused
from octavo.sched.retry import Suspects
from octavo.sched.sequence import Key, Sequence
from octavo.sched.stats import SchedulerStats
from octavo.sched.totals import Totals
from octavo.types import FinishReason, NewSeq, Request, SeqOutput, SeqPlan, StepPlan, StepResult, TokenLogprobs

log = logging.getLogger(__name__)


class Scheduler:
    """Requests in, plans out, results in, outputs out. One thread; no arrays; nothing here waits.

    Every plan that `schedule` returns must be answered by `update`, in order.
    """

    def __init__(self, config: SchedulerConfig, facts: Facts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.kv = KVManager(facts, caching=config.enable_prefix_caching, hash_key=config.hash_key)
        policy = make_policy(config.policy)
        self.intake = Intake(facts, kv=self.kv, policy=policy, max_model_len=config.max_model_len)
        self.queue = WaitingQueue()
        self.running: dict[Sequence, None] = {}
        """Those with a slot, in order of admission."""
        self.totals = Totals()
        self.caution = Caution()
        self._clock = clock
        self._seqs: dict[int, Sequence] = {}
        self._slots = list(range(config.max_num_seqs - 1, -1, -1))
        self._freed: list[int] = []
        self._flights: deque[Flight] = deque()
        self._suspects = Suspects()
        self._step = 0
        self._prompt_limit = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._first: Sequence | None = None
        """Who comes first among the caught-up in the next step: the one this step could not serve."""
        self._prompt_turn = 0
        self._worst: Key | None = None
        """Worst key among the running; None when it must be looked for."""
        self._blocked: tuple[Sequence, int, bytes | None] | None = None
        """The head of the queue that did not fit, the pool's releases then, the name that would lengthen its hit."""
        self._begin()

    def _begin(self) -> None:
        """Empties what belongs to one plan."""
        self._rows: list[Row] = []
        self._plans: list[SeqPlan] = []
        self._budget = self.config.max_num_batched_tokens
        self._preempted = False
        self._may_preempt = True
        self._hopeless: Key | None = None
        """Nobody with this key or a worse one finds room in this step."""
        self._owed: int | None = None
        """Blocks that the running still need for what they know; None when not counted yet."""

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
            room = seq.limit - seq.num_prompt
            log.info("sequence %d: max_tokens %s cut to %d", seq.seq_id, request.params.max_tokens, room)
        self._seqs[request.seq_id] = seq
        self.queue.push(seq)
        return None

    def abort(self, seq_id: int) -> None:
        """Forgets a sequence, wherever it is; its blocks are free at once. Unknown ids are ignored."""
        seq = self._seqs.get(seq_id)
        if seq is not None:
            self._retire(seq)

    def reset_prefix_cache(self) -> None:
        """Forgets every known prefix. Sequences that hit one keep it."""
        self.kv.pool.reset()

    # -- a plan -------------------------------------------------------------------------------------------------------
    def schedule(self) -> StepPlan | None:
        """The next step, or None while nothing can be planned (all wait for steps in flight, or there is no work)."""
        if self._suspects:
            return self._schedule_trial()
        while self._seqs:
            self._begin()
            self._wake()
            self._jump_queue()
            prompts = self._plan_caught_up()
            if self._budget:
                self._plan_prompts(prompts)
            if self._rows:
                return self._commit(trial=False)
            if not self._preempted:
                break
        return None

    def _commit(self, *, trial: bool) -> StepPlan:
        self._step += 1
        planned = self.config.max_num_batched_tokens - self._budget
        self.totals.steps += 1
        self.totals.computed += planned
        self.kv.planned(planned)
        freed, self._freed = self._freed, []
        self._flights.append(Flight(self._step, self._rows, freed, trial))
        return StepPlan(self._step, self._plans, freed)

    def _plan_caught_up(self) -> list[Sequence]:
        """A token for each sequence that is caught up. Returns the others that can be given tokens: prompts."""
        rows, plans, prompts = self._rows, self._plans, []
        chain, budget, step, publish = self.config.chain, self._budget, self._step + 1, self.kv.publish
        order = self._in_turn()
        spare = self._spare_for_drafts(order) if self.config.num_drafts else 0
        stuck: Sequence | None = None
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
            if self.config.policy != "fcfs":
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
        count = min(todo, self._prompt_limit, self._budget)
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
        return True

    def _plan_row(self, seq: Sequence, count: int, *, drafts: int, sampled: int) -> None:
        kv, start, count, step = self.kv, seq.computed, count + drafts, self._step + 1
        before = kv.lacking(seq, len(seq.tokens) + seq.pending)
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
        self.totals.drafted += drafts
        seq.computed += count
        seq.pending += sampled
        seq.inflight += 1
        seq.last_step = step
        if seq.computed >= seq.next_full:
            kv.publish(seq, step)
        if not sampled:
            kv.promise(seq)
        if self._owed is not None:
            self._owed += kv.lacking(seq, len(seq.tokens) + seq.pending) - before

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
            if seq is None or self._is_blocked(seq):
                return
            hit = self.kv.lookup(seq)
            if self._is_promised(seq, hit):
                assert hit.missing is not None
                self.queue.remove(seq)
                self.kv.promises.park(seq, hit.missing)
                self.totals.parked += 1
                continue
            if self._shortage(seq, hit) + self._reserve(seq) > 0:
                self._blocked = (seq, self.kv.pool.releases, hit.missing)
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
        if self._owed is not None:
            self._owed += self.kv.lacking(seq, len(seq.tokens))
        totals = self.totals
        totals.redone += max(0, seq.reached - hit.length)
        if seq.cached_tokens < 0:
            seq.cached_tokens = hit.length
            seq.queued_s = max(0.0, self._clock() - seq.request.arrival)
            totals.prompt += seq.num_prompt
            if self.kv.caching:
                totals.prefix_queries += seq.num_prompt
                totals.prefix_hits += hit.length

    def _shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks missing to hold all it knows and one token more, beside what the running are owed."""
        if self._owed is None:
            self._owed = sum(self.kv.lacking(s, len(s.tokens) + s.pending) for s in self.running)
        need = self.kv.blocks_for(len(seq.tokens) + 1) - sum(map(len, hit.blocks)) + hit.revived
        return need + self._owed - self.kv.pool.free

    def _reserve(self, seq: Sequence) -> int:
        """Blocks kept free for answers likely to grow: its own, and those of the running that it may not preempt."""
        if not self.caution.active:
            return 0
        reserve, blocks_for = self.caution.reserve, self.kv.blocks_for
        kept = 0
        for one in self.running:
            if one.key < seq.key:
                known = len(one.tokens) + one.pending
                kept += blocks_for(known + reserve(one)) - blocks_for(known)
        if not kept:
            return 0  # nobody to be careful about: it may run until it is in the way of somebody
        known = len(seq.tokens) + 1
        return kept + blocks_for(min(known + reserve(seq), seq.limit)) - blocks_for(known)

    def _is_blocked(self, seq: Sequence) -> bool:
        """True while nothing has changed since this head did not fit."""
        if self._blocked is None or self._blocked[0] is not seq:
            return False
        _, releases, missing = self._blocked
        pool = self.kv.pool
        return releases == pool.releases and (missing is None or pool.lookup(0, missing) is None)

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
        if seq is None or not self.running or self._is_blocked(seq):
            return
        if self._worst is None:
            self._worst = max(other.key for other in self.running)
        if seq.key > self._worst:
            return
        hit = self.kv.lookup(seq)
        if self._is_promised(seq, hit):
            return
        shortage = self._shortage(seq, hit)
        self._owed = None
        if shortage <= 0 and self._slots:
            return
        victims = sorted((v for v in self.running if v.key > seq.key), reverse=True)
        number = self.kv.victims_needed(victims, enough=shortage, hit=hit, owed=True)
        if not number:
            self._blocked = (seq, self.kv.pool.releases, hit.missing)
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
        victims = sorted((v for v in self.running if v.key > seq.key and v.last_step != step), reverse=True)
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
        self._worst = self._blocked = None
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
        flight = self._flights.popleft()
        assert flight.step == result.step, (flight.step, result.step)
        if flight.void:
            return []
        if result.error is not None:
            return self._fail_step(flight, result.error)
        if flight.trial:
            self._suspects.acquit([row[0] for row in flight.rows])
        outputs: list[SeqOutput] = []
        plain = result.logprobs is None and result.prompt_logprobs is None and not result.failed
        generated = 0
        for index, ((seq, _, epoch, sampled), got) in enumerate(zip(flight.rows, result.tokens, strict=True)):
            if seq.epoch != epoch:
                continue
            seq.inflight -= 1
            if not plain or sampled > 1:
                if (output := self._take(seq, result, index, sampled)) is not None:
                    outputs.append(output)
            elif sampled:
                (token,) = got
                seq.pending -= 1
                seq.tokens.append(token)
                generated += 1
                if seq.computed >= seq.next_full:
                    self.kv.publish(seq, seq.last_step)
                length = len(seq.tokens)
                if token in seq.stops or length >= seq.limit or length == seq.num_prompt + 1:
                    outputs.append(self._output(seq, got))
                else:
                    outputs.append(SeqOutput(seq.request.seq_id, got, None, None, seq.cached_tokens))
        self.totals.generated += generated
        self.kv.landed(flight.step)
        return outputs

    def _take(self, seq: Sequence, result: StepResult, index: int, sampled: int) -> SeqOutput | None:
        """A row with logprobs, drafts or a failure of its own."""
        if result.failed and index in result.failed:
            self.kv.disown(seq)
            return self._fail(seq, "the logits of this request were not finite")
        got = result.tokens[index]
        given: list[int] = []
        if sampled:
            assert 1 <= len(got) <= sampled, (got, sampled)
            rejected = sampled - len(got)
            self.totals.accepted += len(got) - 1
            self.kv.held -= rejected
            seq.pending -= sampled
            seq.computed -= rejected
            for token in got:
                given.append(token)
                seq.tokens.append(token)
                if self._ending(seq) is not None:
                    break
            self.totals.generated += len(given)
        if seq.computed >= seq.next_full:
            self.kv.publish(seq, seq.last_step)
        scores = self._new_scores(seq, result, index)
        if not given and scores is None:
            return None
        logprobs = result.logprobs[index] if result.logprobs is not None else None
        return self._output(seq, given, logprobs[: len(given)] if logprobs is not None else None, scores)

    def _new_scores(self, seq: Sequence, result: StepResult, index: int) -> list[TokenLogprobs] | None:
        """Prompt logprobs of this row that were not given before a preemption; None when there are none."""
        came = result.prompt_logprobs[index] if result.prompt_logprobs is not None else None
        if not came:
            return None
        fresh = came[max(0, seq.scored - seq.landed) :]
        seq.landed += len(came)
        seq.scored += len(fresh)
        return fresh or None

    def _ending(self, seq: Sequence) -> FinishReason | None:
        """Whether its last token ends it."""
        length = len(seq.tokens)
        if seq.tokens[-1] in seq.stops and length >= seq.stop_from:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= seq.limit else None

    def _output(
        self,
        seq: Sequence,
        given: list[int],
        logprobs: list[TokenLogprobs] | None = None,
        scores: list[TokenLogprobs] | None = None,
    ) -> SeqOutput:
        """What a row gave, with the end if this is it; a sequence that ends is retired."""
        finish = self._ending(seq) if given else None
        if finish is not None:
            self._retire(seq)
            self.caution.ended(len(seq.tokens) - seq.num_prompt)
        stop = given[-1] if finish is FinishReason.STOP else None
        first = given and len(seq.tokens) == seq.num_prompt + len(given)
        queued = seq.queued_s if first else 0.0
        return SeqOutput(seq.seq_id, given, finish, stop, seq.cached_tokens, logprobs, scores, None, queued)

    # -- failure ------------------------------------------------------------------------------------------------------
    def _fail(self, seq: Sequence, error: str) -> SeqOutput:
        self._retire(seq)
        return SeqOutput(seq.seq_id, [], FinishReason.ERROR, None, max(0, seq.cached_tokens), None, None, error)

    def _fail_step(self, flight: Flight, error: str) -> list[SeqOutput]:
        """Rewinds every row in flight. Who was alone in the failed step is guilty; several are tried in halves.

        The workers keep nothing of these steps: each slot they name is cleared and announced anew with the next plan.
        """
        self.totals.failed_steps += 1
        lost: dict[Sequence, int] = {}
        freed: list[int] = []
        members = [seq for seq, _, epoch, _ in flight.rows if seq.epoch == epoch]
        for one in (flight, *self._flights):
            one.void = True
            freed += one.freed
            for seq, plan, epoch, _ in one.rows:
                if seq.epoch == epoch:
                    lost[seq] = lost.get(seq, 0) + plan.count
        for seq, count in lost.items():
            self._forget_flights(seq)
            self.kv.rewind(seq, seq.computed - count)
            seq.landed = min(seq.computed, seq.num_prompt - 1)
            freed.append(seq.slot)
            self.totals.redone += count
        leaning = [seq for seq in lost if self.kv.leans_on(seq, flight.step)]
        self.kv.fail(flight.step)
        for seq in leaning:
            self._preempt(seq)
        self._freed = list(dict.fromkeys(freed + self._freed))
        guilty = self._suspects.accuse(members, trial=flight.trial)
        return [self._fail(guilty, error)] if guilty is not None else []

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
            self._suspects.pop()
        return self.schedule()

    def _place_suspect(self, seq: Sequence) -> bool:
        """A suspect that lost its place comes back if there is room now."""
        self._wake()
        if not self._slots or not seq.queued:
            return False
        hit = self.kv.lookup(seq)
        if self._shortage(seq, hit) > 0:
            return False
        self._place(seq, hit)
        return True

    # -- numbers ------------------------------------------------------------------------------------------------------
    def stats(self) -> SchedulerStats:
        """A snapshot; costs nothing that grows."""
        t, pool = self.totals, self.kv.pool
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self._seqs) - len(self.running),
            blocks_used=pool.used,
            blocks_total=pool.total,
            blocks_cached=pool.cached,
            waste=self.kv.waste,
            steps=t.steps,
            prefix_queries=t.prefix_queries,
            prefix_hits=t.prefix_hits,
            preemptions=t.preemptions,
            computed_tokens=t.computed,
            useful_tokens=max(0, t.computed - t.redone - t.drafted + t.accepted),
            prompt_tokens=t.prompt,
            generated_tokens=t.generated,
            draft_tokens=t.drafted,
            accepted_drafts=t.accepted,
            clamped=t.clamped,
            failed_steps=t.failed_steps,
        )

    def check(self) -> None:
        """Raises AssertionError where the books do not agree or, when idle, where anything is left over. For tests."""
        self.kv.check(self.running)
        assert len(self.running) + len(self._slots) == self.config.max_num_seqs
        slots = [seq.slot for seq in self.running]
        assert len({*slots, *self._slots}) == self.config.max_num_seqs
        if not self.has_work:
            assert self.kv.pool.free == self.kv.pool.total
            assert not self.running and not len(self.queue) and not self._suspects.next()
            assert self.kv.held == self.kv.allocated == 0
            self.kv.promises.check_idle()
