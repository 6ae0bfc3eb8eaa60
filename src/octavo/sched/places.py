"""Who has a place: a slot of the workers, and with it a part in steps."""

from __future__ import annotations

from octavo.config.policy import Key
from octavo.sched.headroom import Headroom
from octavo.sched.kv import KVManager
from octavo.sched.sequence import Sequence


class Places:
    """Slots, those who hold them, and what the workers must be told of those who left."""

    def __init__(self, count: int, kv: KVManager, headroom: Headroom, running: dict[Sequence, None]) -> None:
        """`running`: empty; it is kept here, in order of admission."""
        self.running = running
        self._count = count
        self._kv = kv
        self._headroom = headroom
        self._free = list(range(count - 1, -1, -1))
        self._freed: list[int] = []
        self._worst: Key | None = None
        """Worst key among the running; None when it must be looked for."""

    @property
    def free(self) -> int:
        """How many slots nobody holds."""
        return len(self._free)

    def worst(self) -> Key:
        """Of the running, of whom there must be some."""
        if self._worst is None:
            self._worst = max(seq.key for seq in self.running)
        return self._worst

    def take(self, seq: Sequence) -> None:
        """Gives it a free slot."""
        seq.slot = self._free.pop()
        self.running[seq] = None
        self._worst = None

    def leave(self, seq: Sequence) -> None:
        """Takes slot and blocks back; results of rows in flight are ignored."""
        self._kv.release(seq)
        del self.running[seq]
        self._worst = None
        self._headroom.unblock()
        self._freed.append(seq.slot)
        self._free.append(seq.slot)
        seq.slot = -1
        seq.forget_flights()

    def clear(self, slots: list[int]) -> None:
        """The workers must forget these before the next plan's rows, and before slots freed since."""
        self._freed = list(dict.fromkeys(slots + self._freed))

    def freed(self) -> list[int]:
        """Slots that the workers must clear; each is given once."""
        freed, self._freed = self._freed, []
        return freed

    def check(self) -> None:
        """Raises AssertionError where a slot is lost or held twice. For tests."""
        held = [seq.slot for seq in self.running]
        assert len(held) + len(self._free) == len({*held, *self._free}) == self._count
