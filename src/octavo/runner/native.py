"""The native backend: arenas reserved as planned, weights packed into panels, one Executable over them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Thread
from typing import Any

import numpy as np

from octavo.config.args import EngineArgs
from octavo.kernels import native
from octavo.kernels.affinity import named_cpus
from octavo.kernels.pages import told_of_pages
from octavo.kernels.reference.weights import dense_weight
from octavo.kernels.start_notes import start_notes
from octavo.program.executable import ExecutableSpec, PlacedWeight
from octavo.program.ops import Head, Linear
from octavo.program.rope import RopeSpec
from octavo.runner.matrices import Work, pieces, work_off
from octavo.runner.nodes import Span, spread
from octavo.runner.runner import Backend
from octavo.weights.checkpoint import Checkpoint, Tensor

log = logging.getLogger(__name__)

ALIGN = 64
"""Bytes; every weight starts on a cache line."""
AHEAD, PIECE = 128 << 20, 2 << 20
"""Bytes of KV memory that an idle engine touches beyond what was used, so that the next burst finds them in place, and
bytes touched at once. A page that the host of a virtual machine has to find costs 2 ms a MiB (docs/performance.md)."""
ROPE_ROWS = 4096
"""Positions of a rotary table that are one piece of work."""


class NativeBackend:
    """The Executable with what it runs on: `Backend`. `close` ends its threads; memory lasts as long as its arrays."""

    def __init__(self, spec: ExecutableSpec, team: Any, *, num_blocks: int, nodes: Sequence[int] = (0,)) -> None:
        """Reserves address space; pages are touched as they are first used. `nodes`: the NUMA node of each thread."""
        self._team = team
        self._spec = spec
        self.offsets, total = place(spec)
        self.weights = native.Arena(total)
        self._kv = native.Arena(spec.block_bytes * num_blocks)
        self._activations = native.Arena(max(spec.arena_bytes, ALIGN))
        self._num_blocks = num_blocks
        self._ready = 0
        """Bytes of the KV arena, from its beginning, that nothing has to touch any more."""
        if len(spanned := sorted(set(nodes))) > 1:
            names = ", ".join(map(str, spanned))
            if refused := spread(self.weights, _spans(spec, self.offsets), self._kv, nodes):
                log.warning("not placed on the NUMA nodes %s: %s", names, refused)
            else:
                log.info("weights and KV cache are placed on the NUMA nodes %s, beside the threads there", names)
        self.exe: Any = None

    def pack(self, tensors: Mapping[str, Tensor], *, progress: Callable[[int], None]) -> None:
        """Read every weight of the spec, on as many threads as the team has. `progress` is told source bytes."""
        work_off(self._work(tensors), threads=self._team.threads, progress=progress)

    def _work(self, tensors: Mapping[str, Tensor]) -> Iterator[Work]:
        views = {p.weight.name: self.weights.view(self.offsets[p.weight.name], p.bytes) for p in self._spec.weights}
        yield from _tables(self._spec.weights, views)
        for placed in self._spec.weights:
            dst = views[placed.weight.name]
            if placed.format == "vec" and placed.weight.kind != "table":
                yield 0, partial(_vector, placed, tensors, dst.view(np.float32))
            elif placed.weight.kind != "table":
                yield from pieces(placed, tensors, dst)

    def start(self, tensors: Mapping[str, Tensor]) -> None:
        """Make the Executable; its arrays become this backend's. `tensors`: what host ops read their weights from."""
        addresses = {name: self.weights.address + offset for name, offset in self.offsets.items()}
        kv = (self._kv.address, self._num_blocks)
        self.exe = native.Executable(self._team, self._spec.native(addresses, kv=kv, arena=self._activations))
        self.inputs = self.exe.inputs
        self.columns = self.exe.columns
        self.tokens = self.exe.tokens
        self.sampled = self.exe.sampled
        self.finite = self.exe.finite
        self.forward = self.exe.forward
        if self._spec.hosted:
            from octavo.program.host import HostedExecutable  # the reference's imports cost a start 20 ms

            arena = self._activations.view(0, self._activations.nbytes)
            self.forward = HostedExecutable(self.exe, self._spec, arena, tensors).forward
        self.sample = self.exe.sample
        self.set_bias = self.exe.set_bias
        self.set_stops = self.exe.set_stops
        self.logprobs = self.exe.logprobs

    def poison(self) -> None:
        """Fill the KV arena with NaN: what a test does before every run, so that stale memory shows."""
        self._kv.fill(0xFF)

    def prepare(self, block: int) -> bool:
        """Touch the next piece of the KV memory from `block` on, which was never used; False at `AHEAD`."""
        begin = block * self._spec.block_bytes // PIECE * PIECE
        self._ready = max(self._ready, begin)
        size = min(PIECE, min(self._kv.nbytes, begin + AHEAD) - self._ready)
        if size <= 0:
            return False
        self._kv.touch(self._ready, size)
        self._ready += size
        return True

    def close(self) -> None:
        if self.exe is not None:
            self.exe.close()
        self._team.close()


def _tables(weights: Sequence[PlacedWeight], views: Mapping[str, Any]) -> Iterator[Work]:
    """What makes the rotary tables; a cosine and its sine are made together."""
    made: dict[RopeSpec, dict[str, Any]] = {}
    for placed in weights:
        if placed.weight.table is not None:
            rope, which = placed.weight.table
            view = views[placed.weight.name].view(np.float32)
            made.setdefault(rope, {})[which] = view.reshape(-1, placed.weight.k)
    for rope, pair in made.items():
        rows = len(pair["cos"])
        frequencies = rope.frequencies(rows)
        for first in range(0, rows, ROPE_ROWS):
            last = min(first + ROPE_ROWS, rows)
            yield 0, partial(native.rope_rows, frequencies, rope.attention, first, last, pair["cos"], pair["sin"])


def _vector(placed: PlacedWeight, tensors: Mapping[str, Tensor], dst: Any) -> None:
    at = 0
    for part in placed.weight.parts:
        tensor = tensors[part.tensor]
        dst[at : at + part.rows] = dense_weight("f32", tensor.source, tensor.read(), part.rows, 1).reshape(-1)
        dst[at : at + part.rows] += np.float32(placed.weight.offset)
        at += part.rows
    if placed.weight.balance is not None:
        dst[:at] = placed.weight.balance.of(dst[:at])


def _spans(spec: ExecutableSpec, offsets: Mapping[str, int]) -> Iterator[Span]:
    homes = {op.weight for op in spec.ops if isinstance(op, (Linear, Head))}
    for placed in spec.weights:
        yield Span(offsets[placed.weight.name], placed.bytes, placed.weight.name in homes)


def place(spec: ExecutableSpec) -> tuple[dict[str, int], int]:
    """Offset of every weight in one arena, and its size in bytes."""
    offsets: dict[str, int] = {}
    at = 0
    for placed in spec.weights:
        offsets[placed.weight.name] = at
        at += -(-placed.bytes // ALIGN) * ALIGN
    return offsets, max(at, ALIGN)


def load(
    args: EngineArgs,
    spec: ExecutableSpec,
    checkpoint: Checkpoint,
    *,
    num_blocks: int,
    progress: Callable[[float], None],
) -> tuple[Backend, str, int]:
    """A `Load` (runner/loader.py)."""
    seats = native.team_seats(threads=args.threads, cpus=named_cpus(args.cpus))
    team = native.team_on(seats)
    log.info("kernels: %s, threads: %d", native.isa(), team.threads)
    for note in start_notes():
        log.warning("%s", note)
    backend = NativeBackend(spec, team, num_blocks=num_blocks, nodes=[seat.node for seat in seats])
    total = max(1, sum(t.nbytes for t in checkpoint.tensors.values()))
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(1.0, done / total))

    backend.pack(checkpoint.tensors, progress=advance)
    # On a thread, since it may take long where there is little to tell, and a start must not wait for it.
    Thread(target=_log_pages, args=(backend.weights.address, backend.weights.nbytes), daemon=True).start()
    backend.start(checkpoint.tensors)
    return backend, native.isa(), team.threads


def _log_pages(address: int, nbytes: int) -> None:
    if told := told_of_pages(address, nbytes):
        log.info("weights: %s", told)
