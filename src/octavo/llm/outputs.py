"""From sampled ids to text: detokenise, stop, count, and say which sequences to abort.

A request's state is cumulative and has no queue. Whoever consumes it takes a `RequestOutput` when ready; what came in
between is in its deltas. So a slow consumer costs no memory and gets fewer, larger deltas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from octavo.engine.messages import Outputs
from octavo.errors import InvalidRequest, OctavoError
from octavo.llm.intake import Prepared
from octavo.obs.metrics import Metrics
from octavo.text.detokenize import Detokenizer
from octavo.text.stop import StopChecker
from octavo.text.tokenizer import Tokenizer
from octavo.types import Completion, FinishReason, RequestOutput, SeqOutput, TokenLogprobs


class SeqState:
    """One of a request's n answers."""

    __slots__ = (
        "request", "seq_id", "index", "text", "token_ids", "logprobs", "finish", "stop_reason", "error",
        "first", "last", "_detokenizer", "_stop", "_taken_text", "_taken_ids",
    )  # fmt: skip

    def __init__(self, request: RequestState, seq_id: int, index: int, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request, self.seq_id, self.index = request, seq_id, index
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = [] if params.logprobs is not None else None
        self.finish: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.first = self.last = 0.0
        skip = params.skip_special_tokens
        self._detokenizer = Detokenizer.after(request.prompt_ids, tokenizer, skip_special_tokens=skip)
        self._stop = StopChecker(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        self._taken_text = self._taken_ids = 0

    def push(self, out: SeqOutput) -> bool:
        """Take one step's ids. True: a stop string ended the sequence, the engine must be told."""
        ids = out.new_ids
        for i, token in enumerate(ids):
            self.token_ids.append(token)
            if self.logprobs is not None and out.logprobs is not None and i < len(out.logprobs):
                self.logprobs.append(out.logprobs[i])
            last = i + 1 == len(ids)
            if last and out.stop_token is not None and not self.request.params.include_stop_str_in_output:
                continue  # the id is part of the answer, its text is not
            if self._emit(self._detokenizer.add([token])):
                return out.finish is None
        if out.finish is not None:
            self._end(out)
        return False

    def _emit(self, delta: str) -> bool:
        """Add text. True: a stop string was hit."""
        # Text of the first min_tokens tokens cannot stop the answer.
        if self._stop is None or len(self.token_ids) <= self.request.params.min_tokens:
            self.text += delta
            return False
        safe, hit = self._stop.add(delta)
        self.text += safe
        if hit is None:
            return False
        self.finish, self.stop_reason = FinishReason.STOP, hit
        return True

    def _end(self, out: SeqOutput) -> None:
        """The engine ended it: what the detokeniser and the stop checker still hold is text now."""
        if self._emit(self._detokenizer.finish()):
            return
        if self._stop is not None:
            self.text += self._stop.flush()
        self.finish, self.error = out.finish, out.error
        if out.stop_token is not None and out.stop_token in self.request.params.stop_token_ids:
            self.stop_reason = out.stop_token

    def cancel(self, reason: FinishReason) -> None:
        """End without another token."""
        self._end(SeqOutput(self.seq_id, [], reason))
        self.finish, self.stop_reason = reason, None

    def take(self) -> Completion:
        """The answer so far; the deltas are what was not taken yet."""
        text, ids = self._taken_text, self._taken_ids
        self._taken_text, self._taken_ids = len(self.text), len(self.token_ids)
        return Completion(
            index=self.index,
            text=self.text,
            token_ids=self.token_ids.copy(),
            finish_reason=self.finish,
            stop_reason=self.stop_reason,
            logprobs=None if self.logprobs is None else self.logprobs.copy(),
            delta=self.text[text:],
            delta_ids=self.token_ids[ids:],
            error=self.error,
        )


class RequestState:
    """An open request."""

    __slots__ = (
        "request_id", "prompt", "prompt_ids", "params", "seqs", "num_open", "cached", "prompt_logprobs", "failure",
        "arrival", "queued", "first", "last", "on_update",
    )  # fmt: skip

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer, on_update: Callable[[], object] | None) -> None:
        self.request_id, self.prompt, self.prompt_ids = prepared.request_id, prepared.prompt, prepared.prompt_ids
        self.params = prepared.params
        self.on_update = on_update
        self.cached = 0
        self.failure: OctavoError | None = None
        scored = self.params.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = [None] if scored else None
        self.arrival, self.queued, self.first, self.last = prepared.arrival, 0.0, 0.0, 0.0
        self.seqs = [SeqState(self, r.seq_id, i, tokenizer) for i, r in enumerate(prepared.requests)]
        self.num_open = len(self.seqs)

    @property
    def finished(self) -> bool:
        return self.num_open == 0

    def take(self) -> RequestOutput:
        """The request so far. Raises its failure, if the engine refused it or died."""
        if self.failure is not None:
            raise self.failure
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[s.take() for s in self.seqs],
            finished=self.finished,
            num_cached_tokens=self.cached,
            prompt_logprobs=None if self.prompt_logprobs is None else self.prompt_logprobs.copy(),
        )


class OutputProcessor:
    """The open requests of one engine. Not thread-safe."""

    def __init__(self, *, tokenizer: Tokenizer, metrics: Metrics) -> None:
        self.tokenizer, self.metrics = tokenizer, metrics
        self.requests: dict[str, RequestState] = {}
        self._seqs: dict[int, SeqState] = {}

    @property
    def num_open(self) -> int:
        """Open sequences."""
        return len(self._seqs)

    def open(self, prepared: Prepared, on_update: Callable[[], object] | None = None) -> RequestState:
        """Before the engine is told. `on_update` is called when there is news. Raises InvalidRequest."""
        if prepared.request_id in self.requests:
            raise InvalidRequest(f"request_id: {prepared.request_id!r} is in use", param="request_id")
        state = RequestState(prepared, self.tokenizer, on_update)
        self.requests[state.request_id] = state
        for seq in state.seqs:
            self._seqs[seq.seq_id] = seq
        return state

    def handle(self, message: Outputs) -> list[int]:
        """Take one message of the engine. Returns the sequences to abort: stop strings ended them."""
        now = time.monotonic()
        aborts: list[int] = []
        touched: dict[str, RequestState] = {}
        for out in message.outputs:
            seq = self._seqs.get(out.seq_id)
            if seq is None:
                continue  # aborted meanwhile
            request = seq.request
            touched[request.request_id] = request
            if out.prompt_logprobs and request.prompt_logprobs is not None:
                request.prompt_logprobs.extend(out.prompt_logprobs)
            if out.new_ids:
                self._count(request, seq, out, now)
            if seq.push(out):
                aborts.append(seq.seq_id)
            if seq.finish is not None:
                self._close(seq)
        for refusal in message.refused:
            seq = self._seqs.get(refusal.seq_id)
            if seq is not None:
                touched[seq.request.request_id] = seq.request
                self.metrics.rejections.inc(label="never_fits")
                seq.request.failure = refusal.error()
                aborts += self.abort(seq.request, reason=FinishReason.ERROR)
        for request in touched.values():
            if request.on_update is not None:
                request.on_update()
        return aborts

    def abort(self, request: RequestState, *, reason: FinishReason = FinishReason.ABORT) -> list[int]:
        """Forget a request. Returns its sequences that the engine still has; empty when it had ended."""
        open_seqs = [s for s in request.seqs if s.finish is None]
        for seq in open_seqs:
            seq.cancel(reason)
            self._close(seq)
        return [s.seq_id for s in open_seqs]

    def fail_all(self, error: OctavoError) -> None:
        """The engine is gone: every open request ends with `error`."""
        for request in list(self.requests.values()):
            request.failure = type(error)(str(error))  # one of its own: tracebacks grow on what is raised
            self.abort(request, reason=FinishReason.ERROR)
            if request.on_update is not None:
                request.on_update()

    # -- bookkeeping --------------------------------------------------------------------------------------------------
    def _count(self, request: RequestState, seq: SeqState, out: SeqOutput, now: float) -> None:
        metrics, count = self.metrics, len(out.new_ids)
        if request.first == 0.0:
            request.first = now
            request.queued = out.queued_s
            request.cached = out.cached_tokens
            metrics.prompt_tokens.inc(len(request.prompt_ids))
            metrics.ttft.observe(now - request.arrival)
            metrics.queue_time.observe(out.queued_s)
            metrics.prefill_time.observe(max(0.0, now - request.arrival - out.queued_s))
        if seq.first == 0.0:
            seq.first = now
        else:
            gap = (now - seq.last) / count
            for _ in range(count):
                metrics.itl.observe(gap)
        seq.last = request.last = now
        metrics.generation_tokens.inc(count)

    def _close(self, seq: SeqState) -> None:
        request, metrics, tokens = seq.request, self.metrics, len(seq.token_ids)
        del self._seqs[seq.seq_id]
        metrics.success.inc(label=str(seq.finish))
        metrics.request_answer.observe(tokens)
        if tokens > 1:
            metrics.tpot.observe((seq.last - seq.first) / (tokens - 1))
        request.num_open -= 1
        if request.num_open:
            return
        self.requests.pop(request.request_id, None)
        metrics.e2e.observe(time.monotonic() - request.arrival)
        if request.first:
            metrics.decode_time.observe(request.last - request.first)
        metrics.request_prompt.observe(len(request.prompt_ids))
        metrics.request_longest.observe(max(len(s.token_ids) for s in request.seqs))
        metrics.request_max_tokens.observe(request.params.max_tokens or 0)
        metrics.request_n.observe(len(request.seqs))


def publish(metrics: Metrics, message: Outputs) -> None:
    """Copy the engine's snapshot into the gauges and counters."""
    stats = message.stats
    metrics.running.value = stats.running
    metrics.waiting.value = stats.waiting
    metrics.kv_usage.value = stats.kv_usage
    metrics.kv_waste.value = stats.waste
    metrics.blocks_cached.value = stats.blocks_cached
    metrics.blocks_dropped.value = stats.blocks_dropped
    for group in stats.groups:
        metrics.group_blocks.by_label[group.name] = group.blocks_used
        metrics.group_waste.by_label[group.name] = group.waste
    metrics.drafts.value = stats.drafts
    metrics.draft_tokens.value = stats.draft_tokens
    metrics.accepted_tokens.value = stats.accepted_drafts
    metrics.prefix_queries.value = stats.prefix_queries
    metrics.prefix_hits.value = stats.prefix_hits
    metrics.preemptions.value = stats.preemptions
    metrics.steps.value = stats.steps
    metrics.steps_cut.value = stats.steps_cut
    metrics.steps_failed.value = stats.failed_steps
    metrics.recomputed.value = stats.redone_tokens
    metrics.clamped.value = stats.clamped
    metrics.step_seconds.value = stats.step_seconds
    metrics.step_expected.value = stats.expected_seconds
    metrics.step_missed.value = stats.missed_seconds
    _observe_all(metrics, message.step_tokens)


def _observe_all(metrics: Metrics, step_tokens: Iterable[int]) -> None:
    for tokens in step_tokens:
        metrics.step_tokens.observe(tokens)
