"""From plans to results: keeps the workers' columns, fills the batch fields, calls the backend twice a step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from octavo.facts import Facts
from octavo.types import Logprob, NewSeq, SamplingParams, SeqPlan, StepPlan, StepResult, TokenLogprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int32]


class Backend(Protocol):
    """What executes a lowered Program: the native Executable or its NumPy stand-in (docs/dev/native-abi.md).

    Arrays are persistent and are written in place before a call.
    """

    inputs: dict[str, Any]
    """slot, count, start, kv_len, rows, skip: i32[max_seqs]; table: a list per group of i32[max_seqs, max_blocks]."""
    columns: dict[str, Any]
    """Per-slot sampling parameters."""
    tokens: Any
    """i32[max_slots, max_len]: the tokens each slot knows; `sample` appends to it."""
    sampled: IntArray
    """i32[max_rows]: after `sample`, the token of each logit row."""
    finite: NDArray[np.uint8]
    """u8[max_rows]: 0 where a row's logits held a NaN or an infinity."""

    def forward(self, num_seqs: int, segment: str | None = None) -> None: ...
    def sample(self, num_seqs: int) -> None: ...
    def set_bias(self, slot: int, ids: IntArray, values: NDArray[np.float32]) -> None: ...
    def set_stops(self, slot: int, ids: IntArray) -> None: ...
    def poison(self) -> None: ...
    def prepare(self, block: int) -> bool: ...
    def close(self) -> None: ...
    def logprobs(self, row: int, target: int, top: int) -> tuple[float, int, Sequence[int], Sequence[float]]: ...


class Slot:
    """What the worker knows of one slot, beside its columns."""

    __slots__ = ("computed", "length", "logprobs", "num_blocks", "num_prompt", "prompt_logprobs")

    def __init__(self, new: NewSeq, *, length: int, groups: int) -> None:
        self.length = length
        self.computed = new.computed
        self.num_prompt = new.num_prompt
        self.num_blocks = [0] * groups
        self.logprobs = new.params.logprobs
        self.prompt_logprobs = new.params.prompt_logprobs

    def scores_from(self, rows: int) -> bool:
        """Whether any of the last `rows` computed positions scores a token of the prompt."""
        return rows > 0 and self.prompt_logprobs is not None and self.computed - rows < self.num_prompt - 1


class Runner:
    """One model on one backend. Not thread-safe: the engine's thread calls it."""

    def __init__(self, backend: Backend, facts: Facts, *, max_seqs: int, max_rows: int, max_blocks: int) -> None:
        """`max_seqs` slots; at most `max_rows` logit rows at a time; block tables of `max_blocks` entries a slot."""
        self.backend = backend
        self.facts = facts
        self.max_rows = max_rows
        groups = len(facts.groups)
        self._slots: list[Slot | None] = [None] * max_seqs
        self._tables = [np.zeros((max_seqs, max_blocks), np.int32) for _ in range(groups)]
        self._stop_ids = np.asarray(facts.eos_ids, np.int32)

    def close(self) -> None:
        """End the backend's threads. Its memory is unmapped once nothing refers to this object or to its arrays."""
        self.backend.close()

    def poison(self) -> None:
        """Fill the KV cache with NaN. For tests: nothing stale may reach a result."""
        self.backend.poison()

    def prepare(self, block: int) -> bool:
        """Make some of the KV memory from `block` on ready while there is nothing to run; False when enough is."""
        return self.backend.prepare(block)

    # -- one step ---------------------------------------------------------------------------------------------------
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan. Whatever goes wrong becomes `StepResult.error`; the scheduler then rewinds and retries."""
        began = time.perf_counter()
        try:
            result = self._execute(plan)
        except Exception as error:  # a step's failure is an answer, whatever raised it
            return StepResult(step=plan.step, tokens=[[] for _ in plan.seqs], error=f"{type(error).__name__}: {error}")
        return msgspec.structs.replace(result, seconds=time.perf_counter() - began)

    def _execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.freed_slots:
            self._slots[slot] = None
        states = [self._admit(p) for p in plan.seqs]
        self._fill(plan.seqs, states)
        if any(s.scores_from(p.rows) for p, s in zip(plan.seqs, states, strict=True)):
            return self._run_scored(plan, states)
        self.backend.forward(len(states))
        return self._sample(plan, states, prompt_logprobs=None)

    def _admit(self, p: SeqPlan) -> Slot:
        """The slot's state, made anew where the plan brings the sequence; block tables extended."""
        if p.new is not None:
            self._slots[p.slot] = self._install(p.slot, p.new)
        state = self._slots[p.slot]
        assert state is not None, f"slot {p.slot} was never announced"
        for group, blocks in enumerate(p.new_blocks):
            if blocks:
                have = state.num_blocks[group]
                self._tables[group][p.slot, have : have + len(blocks)] = blocks
                state.num_blocks[group] = have + len(blocks)
        return state

    def _install(self, slot: int, new: NewSeq) -> Slot:
        ids = np.frombuffer(new.token_ids, np.int32)
        self.backend.tokens[slot, : len(ids)] = ids
        self._set_columns(slot, new.params, num_prompt=new.num_prompt)
        return Slot(new, length=len(ids), groups=len(self._tables))

    def _set_columns(self, slot: int, params: SamplingParams, *, num_prompt: int) -> None:
        columns = self.backend.columns
        columns["temperature"][slot] = params.temperature
        columns["top_k"][slot] = max(0, params.top_k)
        columns["top_p"][slot] = params.top_p
        columns["min_p"][slot] = params.min_p
        columns["presence"][slot] = params.presence_penalty
        columns["frequency"][slot] = params.frequency_penalty
        columns["repetition"][slot] = params.repetition_penalty
        columns["seed"][slot] = (params.seed or 0) & 0xFFFFFFFFFFFFFFFF
        columns["num_prompt"][slot] = num_prompt
        columns["min_tokens"][slot] = params.min_tokens
        bias = params.logit_bias or {}
        self.backend.set_bias(
            slot, np.fromiter(bias, np.int32, len(bias)), np.fromiter(bias.values(), np.float32, len(bias))
        )
        stops = np.concatenate([self._stop_ids, np.asarray(params.stop_token_ids, np.int32)])
        self.backend.set_stops(slot, stops)

    def _fill(self, plans: list[SeqPlan], states: list[Slot]) -> None:
        """Write the batch fields, B numbers each; everything T-sized is made by the backend."""
        inputs, n = self.backend.inputs, len(plans)
        slots = np.fromiter((p.slot for p in plans), np.int32, n)
        start = np.fromiter((s.computed for s in states), np.int32, n)
        count = np.fromiter((p.count for p in plans), np.int32, n)
        inputs["slot"][:n] = slots
        inputs["start"][:n] = start
        inputs["count"][:n] = count
        inputs["kv_len"][:n] = start + count
        inputs["rows"][:n] = np.fromiter((p.rows for p in plans), np.int32, n)
        inputs["skip"][:n] = 0
        for group, table in enumerate(self._tables):
            widest = max(s.num_blocks[group] for s in states)
            inputs["table"][group][:n, :widest] = table[slots, :widest]
        for p, state in zip(plans, states, strict=True):
            state.computed += p.count
            assert state.computed <= state.length, "a plan computes positions whose tokens are unknown"

    # -- results ----------------------------------------------------------------------------------------------------
    def _sample(
        self, plan: StepPlan, states: list[Slot], *, prompt_logprobs: list[list[TokenLogprobs] | None] | None
    ) -> StepResult:
        backend = self.backend
        backend.sample(len(states))
        sampled = backend.sampled.tolist()
        finite = backend.finite
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        failed: list[int] = []
        wanted = False
        row = 0
        for i, (p, state) in enumerate(zip(plan.seqs, states, strict=True)):
            row += p.rows
            if not p.rows or state.computed < state.length:
                tokens.append([])
                logprobs.append(None)
                continue
            last = row - 1
            token = sampled[last]
            if not finite[last]:
                failed.append(i)
            state.length += 1
            tokens.append([token])
            if state.logprobs is None:
                logprobs.append(None)
            else:
                wanted = True
                logprobs.append([self._logprobs(last, token, state.logprobs)])
        return StepResult(
            step=plan.step,
            tokens=tokens,
            logprobs=logprobs if wanted else None,
            prompt_logprobs=prompt_logprobs,
            failed=failed or None,
        )

    def _logprobs(self, row: int, target: int, top: int) -> TokenLogprobs:
        chosen, rank, ids, values = self.backend.logprobs(row, target, top)
        entries = [Logprob(int(t), float(v), r) for r, (t, v) in enumerate(zip(ids, values, strict=True), start=1)]
        return TokenLogprobs(Logprob(target, chosen, rank), entries)

    def _run_scored(self, plan: StepPlan, states: list[Slot]) -> StepResult:
        """A step with prompt_logprobs: the layers once, the head over tiles of rows, then the trailing rows sampled.

        Never more than `max_rows` rows of logits exist.
        """
        backend, n = self.backend, len(states)
        rows, skip = backend.inputs["rows"], backend.inputs["skip"]
        rows[:n] = 0  # the plan wants more rows than may exist at a time
        backend.forward(n, "embed")
        backend.forward(n, "layers")
        scores: list[list[TokenLogprobs] | None] = [None] * n
        for i, (p, state) in enumerate(zip(plan.seqs, states, strict=True)):
            if state.prompt_logprobs is None or not state.scores_from(p.rows):
                continue
            first = state.computed - p.rows
            last = min(state.computed, state.num_prompt - 1)  # position q scores the prompt token at q + 1
            found: list[TokenLogprobs] = []
            rows[:n] = 0
            for begin in range(first, last, self.max_rows):
                end = min(begin + self.max_rows, last)
                rows[i], skip[i] = end - begin, state.computed - end
                backend.forward(n, "head")
                targets = backend.tokens[p.slot, begin + 1 : end + 1].tolist()
                found += [self._logprobs(r, t, state.prompt_logprobs) for r, t in enumerate(targets)]
            skip[i] = 0
            scores[i] = found
        trailing = [
            SeqPlan(p.slot, p.count, int(bool(p.rows) and s.computed == s.length), p.draft, p.new_blocks)
            for p, s in zip(plan.seqs, states, strict=True)
        ]
        rows[:n] = np.fromiter((p.rows for p in trailing), np.int32, n)
        backend.forward(n, "head")
        return self._sample(StepPlan(plan.step, trailing, []), states, prompt_logprobs=scores)
