"""One order for everybody: who is admitted first and, reversed, who is preempted first."""

from __future__ import annotations

import heapq
from typing import Protocol

from octavo.errors import ConfigError
from octavo.sched.sequence import Key, Sequence
from octavo.types import Request


class Policy(Protocol):
    def key(self, request: Request) -> Key:
        """Lower goes first. Total (ends in the id), and fixed for a sequence's life."""
        ...

    def level(self, request: Request) -> int:
        """Prompts of a lower level get the budget first; within a level they take turns."""
        ...


class Fcfs:
    """By arrival."""

    def key(self, request: Request) -> Key:
        return (0, request.arrival, request.seq_id)

    def level(self, request: Request) -> int:
        return 0


class Priority:
    """By priority (lower first), then arrival."""

    def key(self, request: Request) -> Key:
        return (request.priority, request.arrival, request.seq_id)

    def level(self, request: Request) -> int:
        return request.priority


POLICIES: dict[str, type[Fcfs] | type[Priority]] = {"fcfs": Fcfs, "priority": Priority}


def make_policy(name: str) -> Policy:
    """Raises `ConfigError` for a name that is not in POLICIES."""
    if name not in POLICIES:
        raise ConfigError(f"policy: got {name!r}, allowed: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()


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
