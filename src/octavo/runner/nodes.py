"""Weights and KV on the NUMA nodes of the threads that read them.

A thread's home in a linear is the same share of its panels in every step (native/include/octavo/homes.h), so those
pages belong on its node. What has no home, such as experts (which of them a step needs, nobody knows) and KV, lies on
all nodes in turn, so that every memory channel is used. Placing is a wish: a node without room is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

PAGE = 2 << 20
"""Bytes: what is placed as one, since weights lie on huge pages."""


@dataclass(frozen=True)
class Span:
    """Bytes of the weights' arena. `homes`: they are the panels of a linear, each thread's share behind another."""

    offset: int
    bytes: int
    homes: bool


class Binds(Protocol):
    """An arena (`octavo._native.Arena`)."""

    @property
    def nbytes(self) -> int: ...

    def bind(self, offset: int, nbytes: int, nodes: list[int]) -> int: ...


def page_nodes(size: int, spans: Iterable[Span], nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The nodes of each page of an arena of `size` bytes, several for "in turn"; `nodes`: each thread's. `spans` in
    order of their offsets.

    A page is its middle's: that of the thread at whose home it lies, else everybody's.
    """
    everybody = tuple(sorted(set(nodes)))
    rest = iter(spans)
    span = next(rest, None)
    for page in range(-(-size // PAGE)):
        middle = min(page * PAGE + PAGE // 2, size - 1)
        while span is not None and span.offset + span.bytes <= middle:
            span = next(rest, None)
        if span is not None and span.homes and span.offset <= middle:
            yield (nodes[(middle - span.offset) * len(nodes) // span.bytes],)
        else:
            yield everybody


def spread(weights: Binds, spans: Iterable[Span], kv: Binds, nodes: Sequence[int]) -> str | None:
    """Place both arenas, before anything in them is touched. What the system refused and why, else None.

    `nodes`: of each thread of the team, in order. Pages are placed a run at a time: each call may split a mapping, and
    a process may have some ten thousands of those.
    """
    at = 0
    for where, pages in groupby(page_nodes(weights.nbytes, spans, nodes)):
        count = min(sum(PAGE for _ in pages), weights.nbytes - at)
        if error := weights.bind(at, count, list(where)):
            return f"weights from byte {at} on and KV cache: {os.strerror(error)}"
        at += count
    if error := kv.bind(0, kv.nbytes, sorted(set(nodes))):
        return f"KV cache: {os.strerror(error)}"
    return None
