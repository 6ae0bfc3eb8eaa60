"""Room for one more: what a whole prompt needs, beside what those who run are still owed."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.sched.caution import Caution
from octavo.sched.kv import Hit, KVManager
from octavo.sched.sequence import Sequence


class Headroom:
    """Counts blocks before somebody is admitted; remembers the head of the queue that did not fit."""

    def __init__(self, kv: KVManager, caution: Caution, running: Mapping[Sequence, None]) -> None:
        self._kv = kv
        self._caution = caution
        self._running = running
        self._owed: int | None = None
        """Blocks that the running still need for what they know; None when not counted yet."""
        self._blocked: tuple[Sequence, int, bytes | None] | None = None
        """The head of the queue that did not fit, the pool's releases then, the name that would lengthen its hit."""

    def recount(self) -> None:
        """What the running are owed has changed by more than `adjust` was told."""
        self._owed = None

    def adjust(self, blocks: int) -> None:
        """The running are owed so many blocks more."""
        if self._owed is not None:
            self._owed += blocks

    def shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks missing to hold all it knows and one token more, beside what the running are owed."""
        kv = self._kv
        if self._owed is None:
            self._owed = sum(kv.owing(s, len(s.tokens) + s.pending) for s in self._running)
        need = kv.blocks_for(len(seq.tokens) + 1, start=hit.length) - hit.held + hit.revived
        return need + self._owed - kv.pool.free

    def reserve(self, seq: Sequence) -> int:
        """Blocks kept free for answers likely to grow: its own, and those of the running that it may not preempt."""
        if not self._caution.active:
            return 0
        reserve, blocks_for = self._caution.reserve, self._kv.blocks_for
        kept = 0
        for one in self._running:
            if one.key < seq.key:
                known = len(one.tokens) + one.pending
                kept += blocks_for(known + reserve(one)) - blocks_for(known)
        if not kept:
            return 0  # nobody to be careful about: it may run until it is in the way of somebody
        known = len(seq.tokens) + 1
        return kept + blocks_for(min(known + reserve(seq), seq.limit)) - blocks_for(known)

    def block(self, seq: Sequence, hit: Hit) -> None:
        """`seq` does not fit until blocks come back or its hit grows."""
        self._blocked = (seq, self._kv.pool.releases, hit.missing)

    def unblock(self) -> None:
        """Who did not fit may fit now."""
        self._blocked = None

    def is_blocked(self, seq: Sequence) -> bool:
        """True while nothing has changed since this head did not fit."""
        if self._blocked is None or self._blocked[0] is not seq:
            return False
        _, releases, missing = self._blocked
        return releases == self._kv.pool.releases and (missing is None or not self._kv.knows(missing))
