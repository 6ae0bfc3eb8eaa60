"""Experts stored as one tensor of three dimensions -> a tensor for each, under the names of those stored one by one.

    p.experts.gate_up_proj [E, 2n, k]   ->  p.experts.N.gate_proj.weight, p.experts.N.up_proj.weight [n, k]
    p.experts.NAME.weight [E, n, k]     ->  p.experts.N.NAME.weight [n, k]            (NAME likewise without .weight)

Nothing is read or copied: each is a slice of the stored tensor's bytes. GGUF files and newer directories store them so.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.errors import FileFormatError
from octavo.weights.tensors import SOURCES, Tensor

JOINED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "experts.gate_up_proj": ("experts", ("gate_proj", "up_proj")),
    "input_linear": ("experts", ("gate_proj", "up_proj")),
    "output_linear": ("experts", ("down_proj",)),
}
"""End of a stored name -> where the experts are, and which tensors follow each other in each of them."""


def split_experts(tensors: Mapping[str, Tensor], path: object) -> dict[str, Tensor]:
    """The tensors, experts of three dimensions cut. Raises FileFormatError for some that cannot be cut."""
    out: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix, parts = _parts(name.removesuffix(".weight")) if len(tensor.shape) == 3 else ("", ())
        if parts:
            out.update((piece.name, piece) for piece in _cut(tensor, prefix, parts, path))
        else:  # of three dimensions and none of experts: refused with all else that does not fit the model
            out[name] = tensor
    return out


def _parts(stem: str) -> tuple[str, tuple[str, ...]]:
    """Where the experts are and what each holds; nothing for a name that is none of experts."""
    for end, (place, parts) in JOINED.items():
        if stem.endswith(f".{end}"):
            return stem.removesuffix(end) + place, parts
    prefix, _, last = stem.rpartition(".")
    return (prefix, (last,)) if prefix.endswith(".experts") else ("", ())


def _cut(tensor: Tensor, prefix: str, parts: tuple[str, ...], path: object) -> list[Tensor]:
    experts, rows, k = tensor.shape
    if rows % len(parts) or k % SOURCES[tensor.source][0]:
        raise FileFormatError(
            f"{path}: tensor {tensor.name}: got shape {tensor.shape}, allowed: {len(parts)} equal parts of whole blocks"
        )
    shape = (rows // len(parts), k)
    size = tensor.nbytes // (experts * len(parts))
    return [
        Tensor(f"{prefix}.{e}.{part}.weight", tensor.source, shape, _Slice(tensor, (e * len(parts) + p) * size, size))
        for e in range(experts)
        for p, part in enumerate(parts)
    ]


class _Slice:
    __slots__ = ("offset", "size", "tensor")

    def __init__(self, tensor: Tensor, offset: int, size: int) -> None:
        self.tensor, self.offset, self.size = tensor, offset, size

    def __call__(self) -> memoryview:
        return memoryview(self.tensor.load())[self.offset : self.offset + self.size]
