"""What comes back from the workers: tokens to their sequences, outputs to callers, and what a failed step costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from octavo.sched.caution import Caution
from octavo.sched.flight import Flight
from octavo.sched.kv import KVManager
from octavo.sched.pace import Pace
from octavo.sched.retry import Suspects
from octavo.sched.sequence import Sequence
from octavo.sched.totals import Totals
from octavo.types import FinishReason, SeqOutput, StepResult, TokenLogprobs


class Results:
    """Answers to plans, in order. Owns the steps in flight and who is suspected of failing one."""

    def __init__(
        self,
        kv: KVManager,
        totals: Totals,
        caution: Caution,
        pace: Pace,
        *,
        retire: Callable[[Sequence], None],
        preempt: Callable[[Sequence], None],
        clear_slots: Callable[[list[int]], None],
    ) -> None:
        """The callables change who has a place: that is the scheduler's."""
        self.flights: deque[Flight] = deque()
        self.suspects = Suspects()
        self._kv = kv
        self._totals = totals
        self._caution = caution
        self._pace = pace
        self._retire = retire
        self._preempt = preempt
        self._clear_slots = clear_slots

    def take(self, result: StepResult) -> list[SeqOutput]:
        """Takes the answer to the oldest plan in flight; gives what each sequence got, and who ended."""
        flight = self.flights.popleft()
        assert flight.step == result.step, (flight.step, result.step)
        if flight.void:
            return []
        if result.error is not None:
            return self._fail_step(flight, result.error)
        if result.seconds > 0:
            self._totals.time_step(expected=flight.expected, actual=result.seconds)
            self._pace.learn(flight.load, result.seconds)
        if flight.trial:
            self.suspects.acquit([row[0] for row in flight.rows])
        outputs: list[SeqOutput] = []
        plain = result.logprobs is None and result.prompt_logprobs is None and not result.failed
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
                if seq.computed >= seq.next_full:
                    self._kv.publish(seq, seq.last_step)
                length = len(seq.tokens)
                if token in seq.stops or length >= seq.limit or length == seq.num_prompt + 1:
                    outputs.append(self._output(seq, got))
                else:
                    outputs.append(SeqOutput(seq.request.seq_id, got, None, None, seq.cached_tokens))
        self._kv.landed(flight.step)
        return outputs

    def _take(self, seq: Sequence, result: StepResult, index: int, sampled: int) -> SeqOutput | None:
        """A row with logprobs, drafts or a failure of its own."""
        if result.failed and index in result.failed:
            self._kv.disown(seq)
            return self._fail(seq, "the logits of this request were not finite")
        got = result.tokens[index]
        given: list[int] = []
        if sampled:
            assert 1 <= len(got) <= sampled, (got, sampled)
            rejected = sampled - len(got)
            self._totals.accepted += len(got) - 1
            self._kv.held -= rejected
            seq.pending -= sampled
            seq.computed -= rejected
            for token in got:
                given.append(token)
                seq.tokens.append(token)
                if self._ending(seq) is not None:
                    break
        if seq.computed >= seq.next_full:
            self._kv.publish(seq, seq.last_step)
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
            self._caution.ended(len(seq.tokens) - seq.num_prompt)
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
        self._totals.failed_steps += 1
        lost: dict[Sequence, int] = {}
        freed: list[int] = []
        members = [seq for seq, _, epoch, _ in flight.rows if seq.epoch == epoch]
        for one in (flight, *self.flights):
            one.void = True
            freed += one.freed
            for seq, plan, epoch, _ in one.rows:
                if seq.epoch == epoch:
                    lost[seq] = lost.get(seq, 0) + plan.count
        for seq, count in lost.items():
            seq.forget_flights()
            self._kv.rewind(seq, seq.computed - count)
            seq.landed = min(seq.computed, seq.num_prompt - 1)
            freed.append(seq.slot)
            self._totals.redone += count
        leaning = [seq for seq in lost if self._kv.torn(seq) or self._kv.leans_on(seq, flight.step)]
        self._kv.fail(flight.step)
        for seq in leaning:
            self._preempt(seq)
        self._clear_slots(freed)
        guilty = self.suspects.accuse(members, trial=flight.trial)
        return [self._fail(guilty, error)] if guilty is not None else []
