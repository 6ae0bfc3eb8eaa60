"""Match a Program with a checkpoint: every tensor present, of the declared shape, and given an execution format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.errors import ConfigError, ModelError, every
from octavo.program.ir import Program
from octavo.program.precision import eight_bits
from octavo.quant.table import AS_SAID, FLOATS, FORMATS, Wishes, choose, quantises


class SourceTensor(Protocol):
    """A checkpoint's tensor, as weights/checkpoint.py gives it."""

    @property
    def source(self) -> str:
        """One of quant/table.py's SOURCES."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def damage(self) -> str:
        """Why it cannot be read; empty for one that can."""

    def read(self) -> NDArray[np.uint8]:
        """The row-major bytes."""


class Formats(Struct, frozen=True):
    """`by_weight`: execution format of each linear weight. `lines`: what happens to the tensors, for the log."""

    by_weight: Mapping[str, str]
    lines: tuple[str, ...]


def choose_formats(program: Program, tensors: Mapping[str, SourceTensor], wishes: Wishes) -> Formats:
    """Formats for every linear of `program`.

    Raises ModelError that names every tensor that is missing, damaged, of another shape, of a type not served
    or none of this model's; ConfigError where --quantization is asked for a checkpoint that has no float linear left to
    quantise, or (compressed-tensors) none whose activations its scheme wants quantised by token.
    """
    _check(program, tensors)
    by_weight: dict[str, str] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    any_float = False
    eight = eight_bits(program)
    for weight in program.weights.values():
        if weight.kind == "table":
            continue
        sources = [tensors[part.tensor].source for part in weight.stored(tensors)]
        if weight.kind == "vec":
            row = ("+".join(dict.fromkeys(sources)), "f32", "vectors")
            counts[row] += len(sources)
            sizes[row] += 4 * weight.n
            continue
        any_float = any_float or (not weight.precise and all(s in FLOATS for s in sources))
        asked = Wishes(dtype=wishes.dtype) if weight.precise else wishes
        choice = choose(sources, asked, eight=weight.name in eight)
        by_weight[weight.name] = choice.format
        row = ("+".join(dict.fromkeys(sources)), choice.format, choice.text)
        counts[row] += len(sources)
        sizes[row] += weight.experts * FORMATS[choice.format].storage_bytes(weight.n, weight.k)
    if quantises(wishes) and not any_float:
        raise ConfigError(
            f"--quantization: got {wishes.quantization}, allowed: none (its linears are quantised already)"
        )
    if wishes.quantization == AS_SAID and not any(FORMATS[name].asked for name in by_weight.values()):
        raise ConfigError(
            f"--quantization: got {AS_SAID}, allowed: none (no linear of the model has int8 weights with one scale a "
            "row and, by its scheme, dynamic int8 activations with one scale a token; other ways in which a model is "
            "quantised are recognised)"
        )
    lines = [
        f"{source} -> {target}, {text}: {counts[row]} tensors, {sizes[row] / 1e6:.1f} MB"
        for row in sorted(counts, key=lambda r: -sizes[r])
        for source, target, text in [row]
    ]
    unused = sorted(program.ignored & tensors.keys())
    if unused:
        lines.append(f"not used: {every(unused)}")
    return Formats(by_weight, tuple(lines))


def _check(program: Program, tensors: Mapping[str, SourceTensor]) -> None:
    """Every tensor that the model wants is there, with its shape, and no other: or all that differs, at once."""
    missing: list[str] = []
    differ: dict[str, list[str]] = defaultdict(list)
    damaged: dict[str, list[str]] = defaultdict(list)
    for weight in program.weights.values():
        for part in weight.stored(tensors):
            tensor = tensors.get(part.tensor)
            wanted = (part.rows,) if weight.kind == "vec" else (part.rows, weight.k)
            if tensor is None:
                missing.append(part.tensor)
            elif tensor.damage:
                damaged[tensor.damage].append(part.tensor)
            elif tuple(tensor.shape) != wanted:
                differ[f"got shape {tuple(tensor.shape)}, allowed: {wanted}, from the config"].append(part.tensor)
            elif weight.kind == "vec" and tensor.source not in FLOATS:
                differ[f"got type {tensor.source}, allowed: {', '.join(FLOATS)}"].append(part.tensor)
    wants = {part.tensor for weight in program.weights.values() for part in weight.stored(tensors)}
    extra = sorted(tensors.keys() - wants - program.ignored)
    problems = [
        f"{count} {what}: {names}"
        for count, what, names in (
            (len(missing), "missing", every(missing)),
            *(
                (
                    sum(map(len, rows.values())),
                    what,
                    ", ".join(f"{every(names)} ({why})" for why, names in rows.items()),
                )
                for what, rows in (("of another shape or type", differ), ("damaged", damaged))
            ),
            (len(extra), "not of this model", every(extra)),
        )
        if count
    ]
    if problems:
        raise ModelError(f"tensors of {program.name}: {'; '.join(problems)}")
