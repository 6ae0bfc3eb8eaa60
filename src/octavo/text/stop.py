"""Stop strings over a stream of text, whatever the borders of its pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Looks for the stop string that is complete first, and holds back text that may still become one.

    Of two that end at the same character the longer wins. Since only ends decide, the result does not depend on how the
    text was cut into pieces. Cost is linear in the text times the number of stop strings.
    """

    __slots__ = ("_failures", "_firsts", "_held", "_hit", "_include", "_states", "_stops")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`stops`: no empty strings. `include`: the stop string is part of the text."""
        assert all(stops), "empty stop strings are refused by SamplingParams"
        self._stops = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._failures = [_failure(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._include = include
        self._held = ""
        self._hit: str | None = None

    def add(self, delta: str) -> tuple[str, str | None]:
        """(text that is safe to emit, the stop string hit or None). After a hit everything is dropped."""
        if self._hit is not None:
            return "", self._hit
        if not self._held and self._firsts.isdisjoint(delta):
            return delta, None
        text = self._held + delta
        for at in range(len(self._held), len(text)):
            hit = self._step(text[at])
            if hit is not None:
                self._hit, self._held = hit, ""
                end = at + 1
                return text[: end if self._include else end - len(hit)], hit
        safe = len(text) - max(self._states)
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """The text still held back, at the end of the stream."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _step(self, char: str) -> str | None:
        """Advances every automaton by one character; the stop string (the longest) that is complete with it."""
        hit = None
        for index, stop in enumerate(self._stops):
            state, failure = self._states[index], self._failures[index]
            while state and stop[state] != char:
                state = failure[state]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                hit = hit or stop
                state = 0
            self._states[index] = state
        return hit


def _failure(stop: str) -> list[int]:
    """failure[k]: length of the longest proper prefix of stop[:k] that is also its suffix (Knuth, Morris, Pratt)."""
    failure = [0, 0]
    state = 0
    for char in stop[1:]:
        while state and stop[state] != char:
            state = failure[state]
        if stop[state] == char:
            state += 1
        failure.append(state)
    return failure
