"""From Request to Sequence: what can never be served is refused here, with the numbers."""

from __future__ import annotations

from array import array

from octavo.config.policy import Policy
from octavo.facts import Facts
from octavo.sched.kv import KVManager
from octavo.sched.refused import Refused
from octavo.sched.sequence import Sequence
from octavo.types import Request


class Intake:
    """Checks requests against the model and the pool, once."""

    def __init__(self, facts: Facts, *, kv: KVManager, policy: Policy, max_model_len: int) -> None:
        self._vocab = facts.vocab_size
        self._eos = frozenset(facts.eos_ids)
        self._kv = kv
        self._policy = policy
        self.longest = min(max_model_len, facts.model_len, kv.max_positions)
        """Longest prompt plus answer."""
        self.bound = (
            f"the KV cache holds {kv.max_positions} tokens"
            if self.longest == kv.max_positions
            else f"the model length is {self.longest} tokens"
        )
        """Why it is no longer, for people."""

    def sequence(self, request: Request) -> Sequence | Refused:
        """A new sequence, its answer cut to what fits; or why there is none."""
        seq_id, params = request.seq_id, request.params
        if not request.prompt_ids or len(request.prompt_ids) % 4:
            got = f"{len(request.prompt_ids)} bytes"
            return Refused(seq_id, "invalid", f"prompt: got {got}, allowed: one or more 4-byte token ids", "prompt")
        tokens = array("i")
        tokens.frombytes(request.prompt_ids)
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._vocab:
            wrong = low if low < 0 else high
            return Refused(
                seq_id, "invalid", f"prompt: got token id {wrong}, allowed: 0 to {self._vocab - 1}", "prompt"
            )
        num_prompt = len(tokens)
        if num_prompt >= self.longest:
            return Refused(
                seq_id,
                "too_long",
                f"prompt: got {num_prompt} tokens, allowed: at most {self.longest - 1} and one for the answer"
                f" ({self.bound})",
                "prompt",
            )
        wanted = self.longest if params.max_tokens is None else num_prompt + params.max_tokens
        stops = frozenset(params.stop_token_ids)
        groups = len(self._kv.groups)
        return Sequence(
            request=request,
            key=self._policy.key(request),
            level=self._policy.level(request),
            root=self._kv.hasher.root(request.root),
            tokens=tokens,
            num_prompt=num_prompt,
            limit=min(wanted, self.longest),
            stops=stops if params.ignore_eos else stops | self._eos if stops else self._eos,
            stop_from=num_prompt + params.min_tokens,
            scores_prompt=params.prompt_logprobs is not None,
            tables=[[] for _ in range(groups)],
            dropped=[0] * groups,
            published=[0] * groups,
        )

    def clamps(self, seq: Sequence) -> bool:
        """True where the request asked for more than it gets."""
        wanted = seq.request.params.max_tokens
        return wanted is not None and seq.num_prompt + wanted > seq.limit
