"""What a quantisation method of Hugging Face directories is: which tensors form a linear, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.errors import ModelError
from octavo.weights.safetensors import SafeTensor

Parts = Mapping[str, SafeTensor]
"""The tensors of one module by the last word of their names: qweight, scales, bias …"""


@dataclass(frozen=True, slots=True)
class Converted:
    """A linear's matrix as a source format holds it."""

    source: str
    """A key of weights.tensors.SOURCES."""
    shape: tuple[int, int]
    load: Callable[[], bytes | memoryview] = field(repr=False, compare=False)
    """Row-major source bytes. Raises ModelError where values are out of range."""
    note: str
    """What happened, for the log: the same words for every linear treated alike."""
    stored: int | None = None
    """Bytes, where `source` has no block size of its own (packed)."""


class Method(Protocol):
    """One `quant_method`, made from its `quantization_config`."""

    leaves: Collection[str]
    """Last words of the tensors that belong to quantised linears, or that serving does not use."""
    matrix: str
    """What follows a module's name in its matrix's: ".weight"."""

    def quantised(self, parts: Parts) -> bool:
        """Whether the module's matrix is stored this method's way; otherwise its tensors are plain numbers."""

    def linear(self, name: str, parts: Parts) -> Converted:
        """The matrix of module `name`, from headers and from tensors that are small beside it. Raises ModelError that
        names the tensor."""


def refuse(key: str, got: object, allowed: str) -> ModelError:
    return ModelError(f"quantization_config.{key}: got {got!r}, allowed: {allowed}")


def need(name: str, parts: Parts, leaf: str, *, dtypes: Collection[str], shape: tuple[int | None, ...]) -> SafeTensor:
    """The module's tensor `leaf`, its dtype among `dtypes` and its shape as said (None: any size)."""
    tensor = parts.get(leaf)
    if tensor is None:
        raise ModelError(f"tensor {name}.{leaf}: got none, allowed: one beside {name}.{next(iter(parts))}")
    if tensor.dtype not in dtypes:
        raise ModelError(f"tensor {tensor.name}: got type {tensor.dtype}, allowed: {', '.join(dtypes)}")
    fits = len(tensor.shape) == len(shape) and all(
        w is None or g == w for g, w in zip(tensor.shape, shape, strict=True)
    )
    if not fits or 0 in tensor.shape:
        allowed = ", ".join("any" if w is None else str(w) for w in shape)
        raise ModelError(f"tensor {tensor.name}: got shape {list(tensor.shape)}, allowed: [{allowed}]")
    return tensor


def one_of(config: Mapping[str, Any], key: str, allowed: Collection[Any], default: Any = None) -> Any:
    """config[key], or the default where it is missing or null, if it is one of `allowed`."""
    value = config.get(key)
    value = default if value is None else value
    if not any(value == a and type(value) is type(a) for a in allowed):
        raise refuse(key, value, ", ".join(map(repr, allowed)))
    return value


def layout(config: Mapping[str, Any], *keys: str, allowed: Collection[str]) -> str:
    """The layout that the keys name, in any case: exporters and readers have renamed the key. The first of `allowed`
    where none does; two that disagree are refused."""
    said = {key: str(config[key]).lower() for key in keys if config.get(key) is not None}
    for key, value in said.items():
        if value not in allowed:
            raise refuse(key, config[key], ", ".join(map(repr, allowed)))
        if value != (first := next(iter(said.values()))):
            raise refuse(key, config[key], f"{first!r}, as {next(iter(said))} says")
    return next(iter(said.values()), next(iter(allowed)))


def group_size(config: Mapping[str, Any], key: str = "group_size") -> int | None:
    """Columns that share a scale: a multiple of 32, or None where a whole row does (-1)."""
    size = config.get(key)
    if type(size) is not int or (size != -1 and (size < 32 or size % 32 or size > 1 << 20)):
        raise refuse(key, size, "a multiple of 32, or -1 (a whole row)")
    return None if size == -1 else size


def columns(name: str, k: int, group: int | None) -> int:
    """Groups of a row of k columns, which must be whole blocks of 32. `group` None: one."""
    if k % 32 or (group is not None and k % group):
        allowed = "32" if group is None else f"32 and of the group size {group}"
        raise ModelError(f"tensor {name}: got {k} input columns, allowed: a multiple of {allowed}")
    return 1 if group is None else k // group
