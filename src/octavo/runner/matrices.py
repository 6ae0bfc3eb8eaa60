"""A weight's matrices from a checkpoint's tensors into the panels that the kernels read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.kernels import native
from octavo.program.executable import PlacedWeight
from octavo.quant.table import PACKED
from octavo.weights.checkpoint import Tensor


def fill(
    placed: PlacedWeight, tensors: Mapping[str, Tensor], dst: Any, *, threads: int, progress: Callable[[int], None]
) -> None:
    """Pack the weight's tensors into `dst`, uint8[placed.bytes]; bytes that are packed already are copied.

    `progress` is told source bytes.
    """
    at = 0
    for part in placed.weight.stored(tensors):
        tensor = tensors[part.tensor]
        if tensor.source == PACKED + placed.format:
            dst[:] = tensor.read()
        else:
            expert, column = divmod(at, placed.n)
            native.pack(
                placed.format, tensor.source, part.rows, placed.k, tensor.read(),
                dst[expert * placed.stride : (expert + 1) * placed.stride],
                col0=column, n_total=placed.n, threads=threads,
            )  # fmt: skip
        at += part.rows
        progress(tensor.nbytes)
