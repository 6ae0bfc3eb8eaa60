"""The engine in the caller's process: `poll` runs a step in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.config.args import EngineArgs
from octavo.engine.build import Engine, build_engine, open_front
from octavo.engine.front import Front
from octavo.engine.messages import Outputs
from octavo.engine.stepper import Stepper
from octavo.errors import EngineDead
from octavo.types import Request


class InprocClient:
    """`EngineClient` without a process. Start with `InprocClient.start`."""

    def __init__(self, engine: Engine, front: Front) -> None:
        self.facts, self.config, self.front = engine.facts, engine.config, front
        self._stepper: Stepper | None = Stepper(engine.core)
        self.stats = engine.core.stats()

    @classmethod
    def start(
        cls,
        args: EngineArgs,
        *,
        on_progress: Callable[[str, float], None] | None = None,
        on_front: Callable[[Front], None] | None = None,
    ) -> InprocClient:
        """Load the model. Raises ConfigError, DoesNotFit, ModelError, FetchError."""
        args, front = open_front(args)
        if on_front is not None:
            on_front(front)
        return cls(build_engine(args, on_progress=on_progress), front)

    @property
    def _alive(self) -> Stepper:
        if self._stepper is None:
            raise EngineDead("the engine was closed")
        return self._stepper

    def add(self, requests: Sequence[Request]) -> None:
        self._alive.add(requests)

    def abort(self, seq_ids: Sequence[int]) -> None:
        self._alive.abort(seq_ids)
        self.stats = self._alive.core.stats()

    def reset_prefix_cache(self) -> None:
        self._alive.core.scheduler.reset_prefix_cache()

    def poll(self, timeout: float | None = None) -> Outputs | None:
        try:
            message = self._alive.step()
        except Exception as error:
            # Not one request's failure, which is an output: the executor or the scheduler is broken.
            self.close()
            raise EngineDead(f"the engine has died: {type(error).__name__}: {error}") from error
        if message is not None:
            self.stats = message.stats
        return message

    def close(self, timeout: float = 5.0) -> None:
        if self._stepper is not None:
            self._stepper.core.close()
            self._stepper = None
