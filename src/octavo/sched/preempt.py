"""Who makes way for whom: never a better key for a worse one, and nobody unless it is enough."""

from __future__ import annotations

from octavo.config.policy import Key
from octavo.sched.caution import Caution
from octavo.sched.headroom import Headroom
from octavo.sched.kv import KVManager
from octavo.sched.places import Places
from octavo.sched.queue import WaitingQueue
from octavo.sched.sequence import Sequence
from octavo.sched.totals import Totals


class Preemption:
    """Takes places back during one plan, which `begin` opens."""

    def __init__(
        self, kv: KVManager, queue: WaitingQueue, places: Places, headroom: Headroom, caution: Caution, totals: Totals
    ) -> None:
        self._kv = kv
        self._queue = queue
        self._places = places
        self._headroom = headroom
        self._caution = caution
        self._totals = totals
        self.begin()

    def begin(self, *, trial: bool = False) -> None:
        """A new plan; in a trial nobody makes room for another."""
        self.happened = False
        """Somebody lost a place in this plan: nobody is admitted in it."""
        self.may_make_room = not trial
        """False once somebody was admitted in this plan, who would be the first to go."""
        self._hopeless: Key | None = None
        """Nobody with this key or a worse one finds room in this plan."""

    def preempt(self, seq: Sequence) -> None:
        """Back to the queue without its blocks; tokens in flight are lost and will be sampled equal."""
        self.happened = True
        self._totals.preemptions += 1
        seq.reached = min(seq.computed, len(seq.tokens))
        self._places.leave(seq)
        self._queue.push(seq)

    def jump_queue(self) -> None:
        """Lets the head of the queue preempt strictly worse keys, if that makes room; it is admitted later."""
        seq, running = self._queue.peek(), self._places.running
        if seq is None or not running or self._headroom.is_blocked(seq) or seq.key > self._places.worst():
            return
        hit = self._kv.lookup(seq)
        if hit.missing is not None and self._kv.promises.is_promised(seq, hit.missing):
            return
        shortage = self._headroom.shortage(seq, hit)
        self._headroom.recount()
        if shortage <= 0 and self._places.free:
            return
        victims = sorted((v for v in running if v.key > seq.key), reverse=True)
        number = self._kv.victims_needed(victims, enough=shortage, hit=hit, owed=True)
        if not number:
            self._headroom.block(seq, hit)
            return
        self._totals.jumps += 1
        for victim in victims[:number]:
            self.preempt(victim)

    def make_room(self, seq: Sequence, step: int) -> bool:
        """Preempts for one more position of `seq`: worst keys first, worse than its own, not planned in this `step`."""
        if not self.may_make_room or (self._hopeless is not None and seq.key >= self._hopeless):
            return False
        idle = [other for other in self._places.running if other.last_step != step]
        for other in idle:
            self._kv.drop_behind(other)
        if self._kv.room(seq) > 0:
            return True
        victims = sorted((v for v in idle if v.key > seq.key), reverse=True)
        missing = self._kv.lacking(seq, seq.computed + 1) - self._kv.pool.free
        number = self._kv.victims_needed(victims, enough=missing)
        if not number:
            self._hopeless = seq.key
            return False
        self._caution.alarm()
        for victim in victims[:number]:
            self.preempt(victim)
        return True

    def clear_the_way(self, group: list[Sequence]) -> bool:
        """Preempts the worst of those who hold what a group lacks for its trial; False where nobody else runs.

        A group that went without its trial would fail the next ordinary step too, and the one after it.
        """
        others = [seq for seq in self._places.running if seq is not group[0]]
        if not others:
            return False
        self.preempt(max(others, key=lambda seq: (seq not in group, seq.key)))
        return True
