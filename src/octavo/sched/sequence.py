"""One generation stream: the only mutable record of a request, owned by the scheduler."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from octavo.config.policy import Key
from octavo.sched.block_pool import Block
from octavo.types import Request, SeqPlan

NEVER = 2**62
"""A position no sequence reaches."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens it knows, positions it has computed. Each step moves the second towards the first.

    tokens    | prompt .............. | sampled ....... |  pending  |
    positions | computed ...................................  | todo |
              | tables[g]: block, block, block, block ............ (capacity)
    """

    request: Request
    key: Key
    level: int
    root: bytes
    """Parent of the first block's name."""
    tokens: array[int]
    num_prompt: int
    limit: int
    """Length at which it ends: num_prompt + max_tokens, cut to what the model and the pool hold."""
    stops: frozenset[int]
    stop_from: int
    """Length from which a stop token counts (min_tokens)."""
    scores_prompt: bool
    """prompt_logprobs was asked for."""
    tables: list[list[Block]]
    """Per group, all of one length. Behind a window the leading entries are the null block."""
    dropped: list[int]
    """Per group, how many leading entries are the null block."""
    published: list[int]
    """Per group, how many leading blocks can be hit by others."""
    names: list[bytes] = field(default_factory=list)
    promised: list[bytes] = field(default_factory=list)

    slot: int = -1
    """-1 while it waits."""
    computed: int = 0
    """Positions whose KV is in the cache, or will be when the steps in flight land."""
    pending: int = 0
    """Most tokens that the steps in flight may still sample."""
    inflight: int = 0
    epoch: int = 0
    """Raised when it loses its slot, is rewound or ends: results of rows planned before are ignored."""
    last_step: int = 0
    capacity: int = 0
    """Positions its tables hold: planning up to here takes no block."""
    next_full: int = NEVER
    """Position at which the next block is full and can be published."""
    decode_plan: SeqPlan | None = None
    """The plan row of one more token with no new block; None while the workers do not know the slot."""
    reached: int = 0
    """Positions computed when it last lost them, to tell work from work done again."""
    scored: int = 0
    """Prompt logprobs given so far."""
    landed: int = 0
    """Prompt logprobs that came since it last started over: behind `scored` they were given before."""
    cached_tokens: int = -1
    """Prompt tokens found at first admission; -1 before."""
    queued_s: float = 0.0
    queued: bool = False
    stale_entries: bool = False
    """The queue still has an entry for it that does not count."""
    done: bool = False

    @property
    def seq_id(self) -> int:
        return self.request.seq_id

    @property
    def wants_scores(self) -> bool:
        """Prompt logprobs are still missing: no prefix look-up, and a row of logits for each position."""
        return self.scores_prompt and self.scored < self.num_prompt - 1

    def forget_flights(self) -> None:
        """Results of rows in flight are ignored, and the workers are told of it anew."""
        self.epoch += 1
        self.pending = self.inflight = 0
        self.decode_plan = None

    def __lt__(self, other: Sequence) -> bool:
        return self.key < other.key
