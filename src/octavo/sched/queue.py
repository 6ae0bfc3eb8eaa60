"""One order for everybody: who is admitted first and, reversed, who is preempted first. A policy makes the keys."""

from __future__ import annotations

import heapq

from octavo.config.policy import Key
from octavo.sched.sequence import Sequence


class WaitingQueue:
    """A heap by key. Removing only marks: stale entries fall out at the top, or together once they are the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Sequence]] = []
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap) - self._stale

    def push(self, seq: Sequence) -> None:
        assert not seq.queued
        seq.queued = True
        if seq.stale_entries:
            # Its old entry sits in the heap under the same key: that one becomes valid again.
            seq.stale_entries = False
            self._stale -= 1
            return
        heapq.heappush(self._heap, (seq.key, seq))

    def peek(self) -> Sequence | None:
        """Who is next, left in place."""
        heap = self._heap
        while heap:
            seq = heap[0][1]
            if seq.queued:
                return seq
            heapq.heappop(heap)
            seq.stale_entries = False
            self._stale -= 1
        return None

    def remove(self, seq: Sequence) -> None:
        """Takes a queued sequence out, wherever it stands."""
        assert seq.queued
        seq.queued = False
        if self._heap[0][1] is seq:
            heapq.heappop(self._heap)
            return
        seq.stale_entries = True
        self._stale += 1
        if self._stale * 2 > len(self._heap):
            for _, other in self._heap:
                other.stale_entries = False
            self._heap = [entry for entry in self._heap if entry[1].queued]
            heapq.heapify(self._heap)
            self._stale = 0
