"""Host ops: what a backend lacks, computed by the reference between the pieces that the backend runs.

So every family runs on the day its file exists, slowly where a kernel is missing; lowering's notes name the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.program.buffers import BufferStore
from octavo.program.executable import ExecutableSpec
from octavo.program.formats import SourceTensor
from octavo.program.interpret import OpRunner, load_weights, make_batch
from octavo.program.ir import Host, weights_of

F32: TypeAlias = NDArray[np.float32]


class Device(Protocol):
    """The part of an Executable that a cut drives; its segments are the device pieces of ExecutableSpec.native."""

    inputs: Mapping[str, Any]
    tokens: Any

    def forward(self, num_seqs: int, segment: str | None = None) -> None: ...


class HostedExecutable:
    """A device Executable whose missing ops the reference computes in the same arena; the rest is the device's."""

    def __init__(
        self, device: Device, spec: ExecutableSpec, arena: NDArray[np.uint8], tensors: Mapping[str, SourceTensor]
    ) -> None:
        """`arena`: the device's activation arena as bytes. Only the host ops' own weights are read from `tensors`.

        The cache's layout is the device's own, so kv_write and attend are never host ops.
        """
        hosted = [op for op in spec.ops if isinstance(op, Host)]
        kinds = {op.op.kind for op in hosted}
        assert not kinds & {"kv_write", "attend"}, "a backend must write and read its own cache"
        names = {name for op in hosted for name in weights_of(op)}
        self._device = device
        self._spec = spec
        self._runner = OpRunner(spec, BufferStore(arena, spec.buffers), load_weights(spec, tensors, names=names), [])
        self._pieces = spec.pieces()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def forward(self, num_seqs: int, segment: str | None = None) -> None:
        """Run all segments, or one: device pieces natively, host ops by the reference."""
        first, end = (0, len(self._spec.ops)) if segment is None else self._spec.segments[segment]
        batch = make_batch(self._device.inputs, self._device.tokens, num_seqs, self._spec.limits)
        for piece in self._pieces:
            if piece.first < first or piece.end > end:
                continue
            if not piece.host:
                self._device.forward(num_seqs, piece.name)
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                for op in self._spec.ops[piece.first : piece.end]:
                    self._runner.run(op, batch)
