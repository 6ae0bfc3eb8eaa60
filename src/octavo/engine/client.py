"""The port between the front half (text, API) and the engine (ids, steps)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.config.resolve import EngineConfig
from octavo.engine.front import Front
from octavo.engine.messages import EngineStats, Outputs
from octavo.facts import Facts
from octavo.types import Request


class EngineClient(Protocol):
    """An engine, here or in another process. Not thread-safe: one thread (or event loop) uses it.

    `add` and `abort` return at once and are seen by the engine before its next step, in order. Nothing is answered to
    an abort, and outputs of an aborted sequence may still arrive: the front half ignores sequences it does not know.
    """

    facts: Facts
    config: EngineConfig
    front: Front
    stats: EngineStats
    """The last snapshot."""

    def add(self, requests: Sequence[Request]) -> None:
        """Hand over sequences. Raises EngineDead."""

    def abort(self, seq_ids: Sequence[int]) -> None:
        """Drop sequences; unknown ids are ignored. Raises EngineDead."""

    def poll(self, timeout: float | None = None) -> Outputs | None:
        """The next step's outputs: run one (in process) or wait for one (`timeout` seconds; None: for ever).

        None where there was nothing to do or to receive. Raises EngineDead.
        """

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks that nobody holds. Raises EngineDead."""

    def close(self, timeout: float = 5.0) -> None:
        """End the engine; safe to call twice, and after its death."""
