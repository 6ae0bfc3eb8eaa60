"""What the scheduler tells the workers each step, and what they answer.

A plan carries counts; the workers know tokens and positions (each slot keeps tokens and `computed`). So steps overlap,
speculation and pipelining are the same plan at another depth.
"""

from __future__ import annotations

import msgspec

from octavo.types.request import TokenLogprobs
from octavo.types.sampling import SamplingParams


class NewSeq(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sent once, when a sequence gets (or regains) a slot."""

    seq_id: int
    token_ids: bytes
    """All known tokens (prompt and what was generated before a preemption), packed little-endian int32."""
    num_prompt: int
    """How many of them are the prompt (penalties, min_tokens and prompt_logprobs need the border)."""
    computed: int
    """Positions already in the cache through prefix hits."""
    params: SamplingParams


class SeqPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence's share of a step: positions [computed, computed + count) of its slot."""

    slot: int
    count: int
    rows: int
    """Trailing positions whose logits are wanted: 0 mid-prompt, 1, 1 + drafts, or count for prompt_logprobs."""
    draft: int
    """How many of the trailing positions are drafts the worker proposed (0 until speculation lands)."""
    new_blocks: list[list[int]]
    """Per KV group, the block ids added to the slot's table this step."""
    new: NewSeq | None = None


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    step: int
    seqs: list[SeqPlan]
    freed_slots: list[int]
    """Slots to clear before this step's sequences are looked at (a slot may be freed and given anew in one plan)."""

    @property
    def num_tokens(self) -> int:
        return sum(s.count for s in self.seqs)


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """Answers in plan order. A sampled row: plan.rows > 0 and the chunk reaches the last known token."""

    step: int
    tokens: list[list[int]]
    """Per sequence: [] where nothing was sampled, else the sampled ids."""
    logprobs: list[list[TokenLogprobs] | None] | None = None
    """Per sequence, beside `tokens`; None when nobody asked."""
    prompt_logprobs: list[list[TokenLogprobs] | None] | None = None
    """Per sequence: for each computed position p with p + 1 < num_prompt the score of token p + 1."""
    failed: list[int] | None = None
    """Indices into the plan whose own logits were not finite: these requests fail, the others stand."""
    error: str | None = None
    """The whole step failed; nothing of it counts and every step in flight must be rewound."""
    seconds: float = 0.0
