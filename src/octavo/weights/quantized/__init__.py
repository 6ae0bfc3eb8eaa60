"""Directories with a `quantization_config`: one row a method; each is a file here, behind the port of port.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from octavo.errors import ModelError
from octavo.weights.quantized.port import Method, Parts
from octavo.weights.safetensors import SafeTensor
from octavo.weights.tensors import Tensor

METHODS: Mapping[str, str] = {
    "awq": "octavo.weights.quantized.awq:AWQ",
    "gptq": "octavo.weights.quantized.gptq:GPTQ",
    "compressed-tensors": "octavo.weights.quantized.compressed:CompressedTensors",
    "fp8": "octavo.weights.quantized.fp8:FP8",
    "fbgemm_fp8": "octavo.weights.quantized.fp8:FP8",
    "octavo": "octavo.weights.quantized.packed:Packed",
}
"""quant_method -> "module:class", a `Method`."""


def method_of(config: Mapping[str, Any]) -> Method:
    """The method that a `quantization_config` names. Raises ModelError (unknown, or parameters that are not read)."""
    name = config.get("quant_method")
    if not isinstance(name, str) or name not in METHODS:
        raise ModelError(f"quantization_config.quant_method: got {name!r}, allowed: {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    method: Method = getattr(import_module(module), attribute)(config)
    return method


def split(
    path: Path, config: object, found: Mapping[str, SafeTensor]
) -> tuple[dict[str, Tensor], dict[str, SafeTensor], tuple[str, ...]]:
    """The directory's quantised matrices as tensors `<module>.weight`; the plain tensors that are left; lines for the
    log. Raises ModelError that begins with `path` for a config that is not read; parts that are no matrix become a
    tensor with `damage`."""
    try:
        method = method_of(config if isinstance(config, Mapping) else {"quant_method": config})
        modules: dict[str, dict[str, SafeTensor]] = defaultdict(dict)
        for name, tensor in found.items():
            module, _, leaf = name.rpartition(".")
            modules[module][leaf] = tensor
        made: dict[str, Tensor] = {}
        plain: dict[str, SafeTensor] = {}
        lines: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for module, parts in modules.items():
            used: set[str] = set(method.leaves) - {"weight"}
            if method.quantised(parts):
                name = module + method.matrix
                made[name], note = _joined(method, module, parts)
                if note:
                    lines[note] += 1
                    sizes[note] += made[name].nbytes
                used.add("weight")
            plain |= {tensor.name: tensor for leaf, tensor in parts.items() if leaf not in used}
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from None
    notes = tuple(f"{note}: {count} tensors, {sizes[note] / 1e6:.1f} MB" for note, count in lines.items())
    return made, plain, notes


def _joined(method: Method, module: str, parts: Parts) -> tuple[Tensor, str]:
    """A module's matrix and the line about it."""
    name = module + method.matrix
    try:
        matrix = method.linear(module, parts)
    except ModelError as error:
        said = str(error)

        def refuse() -> NoReturn:
            raise ModelError(said)

        damage = said.replace(f"{module}.", "").removeprefix("tensor ")  # the same for modules damaged alike
        return Tensor(name, "damaged", (), refuse, 0, damage), ""
    return Tensor(name, matrix.source, matrix.shape, matrix.load, matrix.stored), matrix.note
