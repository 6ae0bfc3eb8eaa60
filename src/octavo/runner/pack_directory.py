"""`octavo quantize`: a model as a directory of matrices packed for the kernels (docs/packed-format.md)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.kernels import native
from octavo.models.registry import build_program
from octavo.program.executable import PlacedWeight
from octavo.program.formats import Formats, choose_formats
from octavo.program.ir import Program
from octavo.program.split import split_joins
from octavo.quant.table import FLOATS, GROUP, PACKED, PANEL, Wishes, quantises
from octavo.runner.matrices import fill
from octavo.runner.opened import open_model
from octavo.weights.checkpoint import Checkpoint, Tensor
from octavo.weights.front import DEFAULT, SAVED, saved_vocabulary
from octavo.weights.quantized.packed import VERSION, PackedWeight
from octavo.weights.safetensors_writer import Entry, write_safetensors

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("tekken.json", "chat_template.jinja", "chat_template.json"),
)
"""What is copied from a directory beside its weights."""
DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
Progress = Callable[[float], None]


def pack_directory(source: Path, out: Path, *, quantization: str, progress: Progress | None = None) -> tuple[str, ...]:
    """Write `source` (a path) as a packed directory into `out`, an empty directory; lines about what was done.

    Float linears become int8 or int4 as --quantization makes them; matrices whose file has codes keep them. Raises
    ModelError, ConfigError, OSError.
    """
    checkpoint = open_model(source)
    packed = next((t.name for t in checkpoint.tensors.values() if t.source.startswith(PACKED)), None)
    if packed is not None:
        raise ConfigError(f"{source}: got a packed directory, allowed: a model that is not packed yet")
    program, formats, notes = _formats(checkpoint, quantization)
    entries, rows = _entries(program, formats, checkpoint.tensors, progress or (lambda fraction: None))
    write_safetensors(out / "model.safetensors", entries, metadata={"format": "octavo-packed", "version": str(VERSION)})
    config = {
        **checkpoint.config,
        "quantization_config": {
            "quant_method": "octavo",
            "version": VERSION,
            "panel": PANEL,
            "group": GROUP,
            "format": quantization,
            "weights": rows,
        },
    }
    (out / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=1))
    _copy_front(checkpoint, out)
    return (*checkpoint.notes, *notes, *formats.lines)


def _formats(checkpoint: Checkpoint, quantization: str) -> tuple[Program, Formats, tuple[str, ...]]:
    """The Program with joins split as serving splits them, its formats, and lines for the log."""
    whole = build_program(checkpoint.config)
    wishes = Wishes(quantization=quantization)
    notes: tuple[str, ...] = ()
    assert quantises(wishes), quantization
    linears = [w for w in whole.weights.values() if w.kind == "linear" and not w.precise]
    tensors = checkpoint.tensors
    if not any(all(p.tensor in tensors and tensors[p.tensor].source in FLOATS for p in w.parts) for w in linears):
        wishes = Wishes()
        notes = (f"no linear is stored as floats: codes are kept as they are, not made {quantization}",)
    program = split_joins(whole, tensors, wishes)
    return program, choose_formats(program, tensors, wishes), notes


def _entries(
    program: Program, formats: Formats, tensors: Mapping[str, Tensor], progress: Progress
) -> tuple[list[Entry], dict[str, PackedWeight]]:
    """Matrices first, whose sizes are multiples of 64; then vectors, as the checkpoint has them."""
    matrices: list[Entry] = []
    vectors: dict[str, Entry] = {}
    rows: dict[str, PackedWeight] = {}
    threads = native.default_threads()
    total = max(1, sum(t.nbytes for t in tensors.values()))
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(1.0, done / total))

    def packer(placed: PlacedWeight) -> Callable[[], Any]:
        def make() -> Any:
            view = native.Arena(placed.bytes).view(0, placed.bytes)
            fill(placed, tensors, view, threads=threads, progress=advance)
            return view

        return make

    for weight in program.weights.values():
        if weight.kind == "linear":
            placed = PlacedWeight(weight, formats.by_weight[weight.name], weight.n, weight.k)
            rows[weight.name] = PackedWeight(placed.format, (weight.n, weight.k), weight.experts)
            matrices.append(Entry(f"{weight.name}.packed", "U8", (placed.bytes,), placed.bytes, packer(placed)))
        elif weight.kind == "vec":
            for part in weight.parts:
                tensor = tensors[part.tensor]
                vectors[tensor.name] = Entry(
                    tensor.name, DTYPES[tensor.source], tensor.shape, tensor.nbytes, tensor.read
                )
    return [*matrices, *vectors.values()], rows


def _copy_front(checkpoint: Checkpoint, out: Path) -> None:
    """The vocabulary, chat templates and sampling defaults."""
    (out / "generation_config.json").write_bytes(msgspec.json.encode(checkpoint.generation_config))
    if checkpoint.path.is_dir() and (checkpoint.path / "config.json").is_file():
        for name in FILES:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, out / name)
        more = "additional_chat_templates"
        if (checkpoint.path / more).is_dir():
            shutil.copytree(checkpoint.path / more, out / more)
        return
    (out / SAVED).write_bytes(saved_vocabulary(checkpoint.tokenizer_spec))
    for name, text in checkpoint.chat_templates.items():
        file = out / (
            "chat_template.jinja" if name == DEFAULT else f"additional_chat_templates/{Path(name).name}.jinja"
        )
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
