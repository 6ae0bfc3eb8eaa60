"""A weight's matrices from a checkpoint's tensors into the panels that the kernels read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from octavo.kernels import native
from octavo.program.executable import PlacedWeight
from octavo.quant.table import PACKED, PANEL
from octavo.weights.checkpoint import Tensor

Work: TypeAlias = tuple[int, Callable[[], object]]
"""Source bytes, and what is to be done with them. Pieces of work touch distinct bytes."""
PIECE = 1 << 20
"""Source bytes of one piece: milliseconds, so that threads end together and asking for the next costs nothing."""


def pieces(placed: PlacedWeight, tensors: Mapping[str, Tensor], dst: Any) -> Iterator[Work]:
    """What packs the weight's tensors into `dst`, uint8[placed.bytes]; bytes that are packed already are copied.

    A tensor is read when its first piece is asked for, and let go behind its last.
    """
    at = 0
    for part in placed.weight.stored(tensors):
        tensor = tensors[part.tensor]
        data = tensor.read()
        if tensor.source == PACKED + placed.format:
            for first in range(0, len(data), PIECE):
                piece = slice(first, first + PIECE)
                yield len(data[piece]), partial(np.copyto, dst[piece], data[piece])
        else:
            expert, column = divmod(at, placed.n)
            panels = dst[expert * placed.stride : (expert + 1) * placed.stride]
            size = tensor.nbytes // part.rows
            rows = -(-PIECE // (size * PANEL)) * PANEL
            for row in range(0, part.rows, rows):
                count = min(rows, part.rows - row)
                yield (
                    count * size,
                    partial(
                        native.pack,
                        *(
                            placed.format,
                            tensor.source,
                            count,
                            placed.k,
                            data[row * size : (row + count) * size],
                            panels,
                        ),
                        col0=column + row,
                        n_total=placed.n,
                        threads=1,
                    ),
                )
        at += part.rows


def fill(
    placed: PlacedWeight, tensors: Mapping[str, Tensor], dst: Any, *, threads: int, progress: Callable[[int], None]
) -> None:
    """All pieces of one weight. `progress` is told source bytes."""
    work_off(pieces(placed, tensors, dst), threads=threads, progress=progress)


def work_off(work: Iterator[Work], *, threads: int, progress: Callable[[int], None]) -> None:
    """Do all pieces on `threads` threads, the caller's among them.

    One thread at a time asks `work` for the next piece; `progress` is told source bytes by the caller's thread alone.
    Raises what the first piece that fails raises; no piece begins after it.
    """
    crew = _Crew(work)
    others = [threading.Thread(target=crew.work, name="octavo-pack", daemon=True) for _ in range(threads - 1)]
    for other in others:
        other.start()
    crew.work(progress)
    for other in others:
        other.join()
    if crew.error is not None:
        raise crew.error
    progress(crew.unsaid())


class _Crew:
    """What the threads of `work_off` share."""

    def __init__(self, work: Iterator[Work]) -> None:
        self._work, self._lock, self._unsaid = work, threading.Lock(), 0
        self.error: BaseException | None = None

    def work(self, progress: Callable[[int], None] | None = None) -> None:
        try:
            while (piece := self._next()) is not None:
                size, run = piece
                run()
                with self._lock:
                    self._unsaid += size
                if progress is not None:
                    progress(self.unsaid())
        except BaseException as error:
            self.error = self.error or error

    def _next(self) -> Work | None:
        with self._lock:
            return None if self.error else next(self._work, None)

    def unsaid(self) -> int:
        """Source bytes done since this was asked."""
        with self._lock:
            done, self._unsaid = self._unsaid, 0
        return done
