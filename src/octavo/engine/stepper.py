"""One step and its message: what both clients' engines do."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.core import EngineCore
from octavo.engine.messages import Outputs
from octavo.sched.refused import Refused
from octavo.types import Request


class Stepper:
    """Steps a core and makes the message of each step."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._refused: list[Refused] = []
        self._computed = 0
        self._step_tokens: list[int] = []
        self.stalled = False
        """The last step had work and could do none of it."""

    @property
    def has_work(self) -> bool:
        return self.core.has_work or bool(self._refused)

    def add(self, requests: Sequence[Request]) -> None:
        """Requests that can never be served are answered with the next step's message."""
        for request in requests:
            refused = self.core.add(request)
            if refused is not None:
                self.refuse(refused)

    def refuse(self, refused: Refused) -> None:
        """Said with the next step's message."""
        self._refused.append(refused)

    def abort(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self.core.abort(seq_id)

    def step(self) -> Outputs | None:
        """Run one; None where there is no work at all."""
        if not self.has_work:
            return None
        outputs = self.core.step()
        stats = self.core.stats()
        tokens, self._computed = stats.computed_tokens - self._computed, stats.computed_tokens
        self.stalled = not outputs and not tokens and not self.core.flying
        if tokens:
            self._step_tokens.append(tokens)
        message = Outputs(outputs, stats, self._refused, self._step_tokens)
        self._refused, self._step_tokens = [], []
        return message

    def keep(self, message: Outputs) -> None:
        """A message that nobody needs to see yet: its step sizes go out with the next."""
        self._step_tokens = message.step_tokens

    def idle_message(self) -> Outputs:
        """The snapshot alone, for those who watch an engine that has just run out of work."""
        return Outputs([], self.core.stats())
