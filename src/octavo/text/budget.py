"""What one rendering of a chat template may take: time, steps, and the size of the values it makes."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from itertools import chain

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_SECONDS = 2.0
MAX_STEPS = 500_000
MAX_VALUE = 16_000_000
"""Characters (or items) of one value."""
MAX_TOTAL = 256_000_000
"""Characters and items of all values one rendering makes."""
MAX_PARTS = 500_000
"""Members of one value, with theirs."""
MAX_DEPTH = 64
MAX_WIDTH = 10_000
TOO_MUCH = "the chat template made more text than any conversation needs"
FLOAT = 330
"""Characters of the longest float, written without an exponent."""


class LimitExceeded(SecurityError):
    """A template took more time, steps or memory than any conversation needs."""


@dataclass(slots=True, eq=False)
class Budget:
    """What is left to one rendering. Not safe to share between threads."""

    deadline: float
    steps: int = 0
    total: int = 0

    @classmethod
    def fresh(cls) -> Budget:
        return cls(deadline=time.monotonic() + MAX_SECONDS)

    def step(self, size: int = 0) -> None:
        """One turn of a loop, or one call. `size`: as in `charge`. Raises LimitExceeded."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitExceeded(f"the chat template took more than {MAX_STEPS} steps")
        self.charge(size)

    def charge(self, size: int) -> None:
        """A value of so many characters or items is read or made. Raises LimitExceeded."""
        self.total += size
        if size > MAX_VALUE or self.total > MAX_TOTAL:
            raise LimitExceeded(TOO_MUCH)
        if time.monotonic() > self.deadline:
            raise LimitExceeded(f"the chat template ran longer than {MAX_SECONDS:g} s")

    def gather(self, items: Iterator[object]) -> list[object]:
        """The items of an iterator, each charged: one long text may come out of it many times. Raises LimitExceeded."""
        found: list[object] = []
        for item in items:
            self.step(weight(item))
            found.append(item)
        return found


def _inside(value: object) -> Iterable[object] | None:
    """What is written out with a value; None for one that holds no others."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    if isinstance(value, set | frozenset | KeysView | ValuesView | ItemsView):
        return value
    if isinstance(value, Namespace):
        # A namespace answers for what the template stored in it, and for nothing else.
        held: dict[str, object] = object.__getattribute__(value, "_Namespace__attrs")
        return chain.from_iterable(held.items())
    return None


def weight(value: object) -> int:
    """About how many characters a value has when it is written out. Raises LimitExceeded."""
    if isinstance(value, str):
        return len(value)
    total, parts = -2, -1
    # A stack of ours: Python's is slow where a frame of recursion crosses a block of its own.
    open_values: list[Iterator[object]] = [iter((value,))]
    while open_values:
        for part in open_values[-1]:
            total, parts = total + 2, parts + 1
            # A list that holds one list twice, that holds one list twice, …, is small and writes out without end.
            if total > MAX_VALUE or parts > MAX_PARTS:
                raise LimitExceeded(TOO_MUCH)
            if isinstance(part, str | bytes):
                total += len(part)
            elif isinstance(part, int):
                total += 16 + part.bit_length()
            elif (inside := _inside(part)) is None:
                total += 16
            else:
                total += 2
                if len(open_values) > MAX_DEPTH:
                    raise LimitExceeded(f"the chat template nests values more than {MAX_DEPTH} deep")
                open_values.append(iter(inside))
                break
        else:
            open_values.pop()
    return total


def size(value: object) -> int:
    """The length of a text or list, 0 of everything else."""
    return len(value) if isinstance(value, str | list | tuple | bytes) else 0


def small(numbers: Iterable[object]) -> None:
    """Refuses a width or a count that no template needs. Raises LimitExceeded."""
    if any(isinstance(number, int) and abs(number) > MAX_WIDTH for number in numbers):
        raise LimitExceeded(f"the chat template asked for a width or count above {MAX_WIDTH}")
