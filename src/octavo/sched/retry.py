"""Which request fails a step? Retried in halves until one is alone with the error."""

from __future__ import annotations

from octavo.sched.sequence import Sequence


class Suspects:
    """A stack of groups still to be tried. Each trial clears its members or splits them, so it ends.

    Invariance makes this safe: a row gives the same bits in any company, so a retry changes no result.
    """

    def __init__(self) -> None:
        self._groups: list[list[Sequence]] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def left(self) -> bool:
        """Somebody is still to be tried. Only looks: those that ended stay on the stack."""
        return any(not seq.done for group in self._groups for seq in group)

    def accuse(self, members: list[Sequence], *, trial: bool) -> Sequence | None:
        """A step with these members failed. The guilty one where a trial had it alone; else its halves are to be tried.

        Who was alone in an ordinary step is tried once more: an error that passes should cost nobody a request.
        """
        self.acquit(members)
        if len(members) > 1:
            half = len(members) // 2
            self._groups += [members[half:], members[:half]]
        elif members:
            if trial:
                return members[0]
            self._groups.append(members)
        return None

    def acquit(self, members: list[Sequence]) -> None:
        """These ran without error, or are tried anew in other company."""
        cleared = set(map(id, members))
        groups = ([seq for seq in group if id(seq) not in cleared] for group in self._groups)
        self._groups = [group for group in groups if group]

    def next(self) -> list[Sequence]:
        """The group to try now, without those that ended meanwhile; empty when nobody is left."""
        while self._groups:
            group = [seq for seq in self._groups[-1] if not seq.done]
            if group:
                self._groups[-1] = group
                return group
            self._groups.pop()
        return []

    def pop(self) -> None:
        """The group on top cannot run, though nobody is in its way; it goes back among the others untried."""
        self._groups.pop()
