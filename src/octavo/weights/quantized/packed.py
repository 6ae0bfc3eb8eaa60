"""Octavo's own packed directories (docs/packed-format.md): matrices as the kernels read them, one U8 tensor each.

`quantization_config` = {"quant_method": "octavo", "version": 1, "panel": 16, "group": 32, "format": "int4", "weights":
{name: {"format": "int4m", "shape": [n, k], "experts": 1}}}. A name is the Program's (joined linears are one matrix); in
the file `.packed` follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from octavo.errors import ModelError
from octavo.quant.table import FORMATS, GROUP, PACKED, PANEL
from octavo.weights.quantized.port import Converted, Parts, need, one_of, refuse

VERSION = 1
"""Of the layout. Another number is refused: packed bytes mean nothing to a reader of another layout."""
Size = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class PackedWeight(msgspec.Struct, frozen=True):
    """A row of `weights`."""

    format: str
    """A key of quant.table.FORMATS."""
    shape: tuple[Size, Size]
    """Rows (of one expert) and columns."""
    experts: Size = 1

    @property
    def nbytes(self) -> int:
        return self.experts * FORMATS[self.format].storage_bytes(*self.shape)


class Packed:
    matrix = ""
    leaves = ("packed",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        one_of(config, "version", (VERSION,))
        one_of(config, "panel", (PANEL,))
        one_of(config, "group", (GROUP,))
        try:
            self._weights = msgspec.convert(config.get("weights"), dict[str, PackedWeight])
        except msgspec.ValidationError as error:
            raise refuse("weights", str(error), "name: {format, shape, experts}") from None

    def quantised(self, parts: Parts) -> bool:
        return "packed" in parts

    def linear(self, name: str, parts: Parts) -> Converted:
        row = self._weights.get(name)
        if row is None:
            raise ModelError(f"tensor {name}.packed: got packed bytes, allowed: those listed in `weights`")
        if row.format not in FORMATS:
            raise refuse(f"weights.{name}.format", row.format, ", ".join(FORMATS))
        tensor = need(name, parts, "packed", dtypes=("U8",), shape=(row.nbytes,))
        shape = (row.experts * row.shape[0], row.shape[1])
        return Converted(
            PACKED + row.format, shape, lambda: tensor.data, f"packed for the kernels as {row.format}", row.nbytes
        )
