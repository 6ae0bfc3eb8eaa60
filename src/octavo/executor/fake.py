"""A deterministic stand-in for a model, for tests and for trying the engine without weights.

The next token is a hash of what each KV group can see of the prefix, *read back through the block tables*: what a
scheduler does to KV memory changes the text. Attention's order holds too: every row of a step writes before any row
reads. All groups share one memory, so a block that two groups hold at once shows.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.facts import Facts, KVGroup, kind_of
from octavo.types import Logprob, NewSeq, Request, SamplingParams, SeqPlan, StepPlan, StepResult, TokenLogprobs

POISON = -7


def fake_facts(
    *,
    num_blocks: int = 257,
    block_size: int = 16,
    vocab_size: int = 64,
    model_len: int = 4096,
    eos_ids: tuple[int, ...] = (7,),
    windows: Sequence[int | None] = (None,),
) -> Facts:
    """Facts of a model that does not exist, with a KV group for each of `windows` (None: a full one)."""
    return Facts(
        model_name="fake",
        architecture="fake",
        vocab_size=vocab_size,
        model_len=model_len,
        groups=tuple(KVGroup(name=f"group{i}", kind=kind_of(w), layers=1, window=w) for i, w in enumerate(windows)),
        block_size=block_size,
        block_bytes=4 * block_size,
        num_blocks=num_blocks,
        eos_ids=eos_ids,
        isa="fake",
    )


def seen_from(length: int, window: int | None) -> int:
    """The first position that the last of `length` positions sees."""
    return 0 if window is None else max(0, length - window)


def combine(views: list[int]) -> int:
    """One number of what each group sees; where all see the same, that."""
    return views[0] if len(set(views)) == 1 else zlib.crc32(repr(views).encode())


def next_token(prefix_hash: int, *, facts: Facts, params: SamplingParams, num_output: int) -> int:
    """The token after a prefix: by its hash, and where sampling is on by seed too.

    Below min_tokens neither a stop token nor EOS comes, though EOS be ignored: that is the runner's rule.
    """
    if params.temperature > 0:
        prefix_hash = zlib.crc32(b"%d" % (params.seed or 0), prefix_hash)
    token = prefix_hash % facts.vocab_size
    if num_output < params.min_tokens:
        banned = {*params.stop_token_ids, *facts.eos_ids}
        while token in banned:
            token = (token + 1) % facts.vocab_size
    return token


def fake_answer(request: Request, *, facts: Facts, limit: int) -> list[int]:
    """The truth: what one sequence alone answers, from tokens only. `limit` is its greatest length."""
    params = request.params
    tokens = array("i")
    tokens.frombytes(request.prompt_ids)
    start = len(tokens)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else facts.eos_ids)}
    while True:
        made = len(tokens) - start
        views = [zlib.crc32(tokens[seen_from(len(tokens), group.window) :]) for group in facts.groups]
        token = next_token(combine(views), facts=facts, params=params, num_output=made)
        tokens.append(token)
        if len(tokens) >= limit or made + 1 == params.max_tokens or (token in stops and made + 1 >= params.min_tokens):
            return list(tokens[start:])


@dataclass(slots=True, eq=False)
class _Slot:
    new: NewSeq
    tokens: array[int]
    computed: int
    tables: list[list[int]] = field(default_factory=list)


class FakeExecutor:
    """`fail(plan)` may return an error text: the step fails, its positions hold garbage, its slots are not updated.

    `fail_rows(plan)` may return indices of rows whose logits "are not finite". `draft_error` n makes about every n-th
    draft wrong; `step_seconds` makes a step take time; `seconds(plan)` is what results say it took, 0 for unknown.
    """

    def __init__(
        self,
        facts: Facts | None = None,
        *,
        fail: Callable[[StepPlan], str | None] | None = None,
        fail_rows: Callable[[StepPlan], list[int]] | None = None,
        draft_error: int = 3,
        step_seconds: float = 0.0,
        seconds: Callable[[StepPlan], float] | None = None,
    ) -> None:
        self.facts = facts if facts is not None else fake_facts()
        self._fail = fail
        self._fail_rows = fail_rows
        self._draft_error = draft_error
        self._step_seconds = step_seconds
        self._seconds = seconds
        self._kv = array("i", [POISON]) * (self.facts.num_blocks * self.facts.block_size)
        self._slots: dict[int, _Slot] = {}
        self._queue: deque[StepPlan] = deque()
        self._void = 0
        """Plans at the head of the queue that were submitted before a failure was known."""

    def submit(self, plan: StepPlan) -> None:
        self._queue.append(plan)

    def prepare(self, block: int) -> bool:
        return False

    def close(self) -> None:
        self._queue.clear()
        self._slots.clear()

    def collect(self) -> StepResult:
        plan = self._queue.popleft()
        if self._step_seconds:
            time.sleep(self._step_seconds)
        empty: list[list[int]] = [[] for _ in plan.seqs]
        if self._void:
            self._void -= 1
            return StepResult(plan.step, empty, error="an earlier step failed")
        error = self._fail(plan) if self._fail is not None else None
        if error is not None:
            self._void = len(self._queue)
            self._poison(plan)
            return StepResult(plan.step, empty, error=error)
        for slot in plan.freed_slots:
            self._slots.pop(slot, None)
        rows = [(self._enter(row), row) for row in plan.seqs]
        drafts = [self._write(slot, row) for slot, row in rows]
        for (held, row), proposed in zip(rows, drafts, strict=True):
            self._spoil(held, row, proposed)
        failed = self._fail_rows(plan) if self._fail_rows is not None else []
        return self._answer(plan, rows, drafts, failed)

    def _enter(self, row: SeqPlan) -> _Slot:
        """The slot of a row, with this step's new blocks in its tables."""
        if row.new is not None:
            assert row.slot not in self._slots, "a slot was given anew without being freed"
            tokens = array("i")
            tokens.frombytes(row.new.token_ids)
            self._slots[row.slot] = _Slot(row.new, tokens, row.new.computed, [[] for _ in self.facts.groups])
        slot = self._slots[row.slot]
        for group, table, new in zip(self.facts.groups, slot.tables, row.new_blocks, strict=True):
            dropped = seen_from(slot.computed + 1, group.window) // self.facts.block_size if row.new is not None else 0
            assert not any(new[:dropped]) and 0 not in new[dropped:], "the null block was handed out, or is missing"
            table += new
        return slot

    def _write(self, slot: _Slot, row: SeqPlan) -> array[int]:
        """Writes positions [computed, computed + count); returns the drafts among them."""
        drafts = self._propose(slot, row.draft)
        known = slot.tokens + drafts
        end = slot.computed + row.count
        assert end <= len(known), "positions beyond what is known"
        assert not row.draft or end == len(known), "drafts must end the chunk"
        size = self.facts.block_size
        for table in slot.tables:
            for at in range(slot.computed, end):
                self._kv[table[at // size] * size + at % size] = known[at]
        return drafts

    def _spoil(self, slot: _Slot, row: SeqPlan, drafts: array[int]) -> None:
        """What the row's first position sees behind a window must be there, or all that it wrote is wrong.

        Its last position is looked at where it samples.
        """
        length = slot.computed + 1
        known = slot.tokens + drafts
        for group, table in zip(self.facts.groups, slot.tables, strict=True):
            if group.window is not None:
                first = seen_from(length, group.window)
                if self._view(table, first, length) != zlib.crc32(known[first:length]):
                    self._damage(slot.tables, slot.computed, row.count)

    def _propose(self, slot: _Slot, count: int) -> array[int]:
        """Mostly right guesses of the next `count` tokens."""
        known = slot.tokens[:]
        for _ in range(count):
            guess = self._sample(slot, zlib.crc32(known), len(known))
            wrong = zlib.crc32(known, 1) % self._draft_error == 0
            known.append((guess + wrong) % self.facts.vocab_size)
        return known[len(slot.tokens) :]

    def _sample(self, slot: _Slot, prefix_hash: int, length: int) -> int:
        made = length - slot.new.num_prompt
        return next_token(prefix_hash, facts=self.facts, params=slot.new.params, num_output=made)

    def _read(self, slot: _Slot, length: int) -> int:
        """Hash of what position `length` - 1 sees, as it stands in the cache, of every group."""
        pairs = zip(self.facts.groups, slot.tables, strict=True)
        return combine([self._view(table, seen_from(length, group.window), length) for group, table in pairs])

    def _view(self, table: list[int], first: int, length: int) -> int:
        """Hash of positions [first, length) in the cache."""
        view, size, value = memoryview(self._kv), self.facts.block_size, 0
        for i in range(first // size, -(-length // size)):
            start, end = max(first - i * size, 0), min(size, length - i * size)
            value = zlib.crc32(view[table[i] * size + start : table[i] * size + end], value)
        return value

    def _answer(
        self, plan: StepPlan, rows: list[tuple[_Slot, SeqPlan]], drafts: list[array[int]], failed: list[int]
    ) -> StepResult:
        tokens: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        scores: list[list[TokenLogprobs] | None] = []
        for (slot, row), proposed in zip(rows, drafts, strict=True):
            params = slot.new.params
            end = last = slot.computed + row.count
            got: list[int] = []
            if row.rows and end == len(slot.tokens) + len(proposed):
                base = len(slot.tokens)
                for k in range(len(proposed) + 1):
                    got.append(self._sample(slot, self._read(slot, base + k), base + k))
                    if k < len(proposed) and got[k] != proposed[k]:
                        break
                slot.tokens.extend(got)
                end -= len(proposed) + 1 - len(got)
            slot.computed = end
            tokens.append(got)
            logprobs.append([_score(t, params.logprobs) for t in got] if params.logprobs is not None else None)
            # A score needs a row of logits; a prompt computed again after a preemption has them no more.
            wanted = range(last - row.rows + 1, min(last + 1, slot.new.num_prompt))
            wanted = wanted if params.prompt_logprobs is not None else range(0)
            scores.append([_score(slot.tokens[p], params.prompt_logprobs or 0) for p in wanted] or None)
        return StepResult(
            plan.step,
            tokens,
            logprobs if any(one is not None for one in logprobs) else None,
            scores if any(one is not None for one in scores) else None,
            failed or None,
            seconds=self._seconds(plan) if self._seconds is not None else 0.0,
        )

    def _poison(self, plan: StepPlan) -> None:
        """A failed step may have written anything where it was to write, and nowhere else."""
        gone = set(plan.freed_slots)
        for row in plan.seqs:
            slot = self._slots.get(row.slot) if row.new is None and row.slot not in gone else None
            computed = slot.computed if slot is not None else row.new.computed if row.new is not None else 0
            have = slot.tables if slot is not None else [[] for _ in self.facts.groups]
            self._damage([old + new for old, new in zip(have, row.new_blocks, strict=True)], computed, row.count)

    def _damage(self, tables: list[list[int]], start: int, count: int) -> None:
        size = self.facts.block_size
        for table in tables:
            for at in range(start, start + count):
                self._kv[table[at // size] * size + at % size] = POISON


def _score(token: int, top: int) -> TokenLogprobs:
    """Made-up log-probabilities that depend on the token only."""
    others = [Logprob((token + i) % 2**31, -0.5 - i, i + 1) for i in range(top)]
    return TokenLogprobs(Logprob(token, -0.5, 1), others)
