"""Who goes first: the one table of scheduling policies. A new one is a class, its name and a row here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from octavo.types import Request

Key = tuple[int, float, int]
"""Compared as a whole, lower first: by the policy, then arrival, then the id."""


class Policy(Protocol):
    uses_priority: bool
    """Whether `Request.priority` matters; where it does not, one other than 0 is a mistake."""

    def key(self, request: Request) -> Key:
        """Lower goes first. Total (ends in the id), and fixed for a sequence's life."""
        ...

    def level(self, request: Request) -> int:
        """Prompts of a lower level get the budget first; within a level they take turns."""
        ...


class Fcfs:
    """First come, first served."""

    uses_priority = False

    def key(self, request: Request) -> Key:
        return (0, request.arrival, request.seq_id)

    def level(self, request: Request) -> int:
        return 0


class Priority:
    """By priority (lower first), then arrival."""

    uses_priority = True

    def key(self, request: Request) -> Key:
        return (request.priority, request.arrival, request.seq_id)

    def level(self, request: Request) -> int:
        return request.priority


PolicyName = Literal["fcfs", "priority"]
POLICIES: dict[PolicyName, Policy] = {"fcfs": Fcfs(), "priority": Priority()}
DEFAULT_POLICY: PolicyName = "fcfs"
