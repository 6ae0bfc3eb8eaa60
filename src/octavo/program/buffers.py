"""Activation buffers in an arena, read and written as float32 through views: the reference's side of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.kernels.reference import rows as kernels
from octavo.program.executable import PlacedBuffer
from octavo.program.ir import View
from octavo.quant.table import GROUP

F32: TypeAlias = NDArray[np.float32]


class BufferStore:
    """Buffers at their planned places. Reading converts to float32; writing rounds once to the buffer's dtype."""

    def __init__(self, arena: NDArray[np.uint8], buffers: Sequence[PlacedBuffer]) -> None:
        """`arena`: at least arena_bytes bytes, borrowed."""
        self._buffers = buffers
        self._raw = [arena[b.offset : b.offset + b.size].reshape(-1, b.stride) for b in buffers]

    def read(self, view: View, rows: int) -> F32:
        """[rows, heads, width], a copy or a view not to be written to."""
        whole = self.numbers(view.buffer, rows)
        if view.heads == 1:
            return whole[:, None, view.offset : view.offset + view.width]
        pieces = [whole[:, first:end] for first, end in view.spans()]
        return np.stack(pieces, axis=1)

    def numbers(self, buffer: int, rows: int) -> F32:
        """All columns [rows, width]; q8 and q8t as codes * scale."""
        b = self._buffers[buffer]
        if b.dtype == "q8":
            codes, scale, _ = self.codes(buffer, rows)
            return kernels.dequantize(codes, scale)
        if b.dtype == "q8t":
            by_token, of_row, _ = self.token_codes(buffer, rows)
            return np.asarray(by_token.astype(np.float32) * of_row)
        return self._elements(buffer, rows).astype(np.float32, copy=False)

    def codes(self, buffer: int, rows: int) -> tuple[NDArray[np.int8], F32, F32]:
        """A q8 buffer's codes [rows, width], scales and sums [rows, groups]; writable views."""
        raw, width = self._raw[buffer][:rows], self._buffers[buffer].width
        groups = -(-width // GROUP)
        at = groups * GROUP
        scale = raw[:, at : at + 4 * groups].view(np.float32)
        total = raw[:, at + 4 * groups : at + 8 * groups].view(np.float32)
        return raw[:, :at].view(np.int8)[:, :width], scale, total

    def token_codes(self, buffer: int, rows: int) -> tuple[NDArray[np.int8], F32, NDArray[np.int32]]:
        """A q8t buffer's codes [rows, width], scales and sums of codes [rows, 1]; writable views."""
        raw, width = self._raw[buffer][:rows], self._buffers[buffer].width
        at = -(-width // GROUP) * GROUP
        codes, scale, total = raw[:, :width], raw[:, at : at + 4], raw[:, at + 4 : at + 8]
        return codes.view(np.int8), scale.view(np.float32), total.view(np.int32)

    def write(self, view: View, values: F32) -> None:
        """values [rows, heads, width] or [rows, heads * width]."""
        count = len(values)
        values = values.reshape(count, view.heads, view.width)
        b = self._buffers[view.buffer]
        if b.dtype == "q8":
            self._write_q8(view, values)
            return
        if b.dtype == "q8t":
            assert view.offset == 0 and view.columns == b.width, "q8t is written by whole rows"
            codes, scale, total = self.token_codes(view.buffer, count)
            codes[:], scale[:, 0], total[:, 0] = kernels.quantize_token(values.reshape(count, b.width))
            return
        target = self._elements(view.buffer, count)
        for h, (first, end) in enumerate(view.spans()):
            target[:, first:end] = values[:, h].astype(target.dtype, copy=False)

    def _write_q8(self, view: View, values: F32) -> None:
        codes, scale, total = self.codes(view.buffer, len(values))
        whole = view.offset == 0 and view.stride == view.width and view.columns == self._buffers[view.buffer].width
        if whole:
            codes[:], scale[:], total[:] = kernels.quantize(values.reshape(len(values), view.columns))
            return
        for h, (first, end) in enumerate(view.spans()):
            assert first % GROUP == 0 and view.width % GROUP == 0, "a q8 group would straddle two views"
            g = slice(first // GROUP, end // GROUP)
            codes[:, first:end], scale[:, g], total[:, g] = kernels.quantize(values[:, h])

    def _elements(self, buffer: int, rows: int) -> NDArray[Any]:
        """f32, bf16 or i32 elements [rows, width], writable."""
        b = self._buffers[buffer]
        kind: Any = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i32": np.int32}[b.dtype]
        elements: NDArray[Any] = self._raw[buffer][:rows].view(kind)
        return elements[:, : b.width]
