"""Logits of every family equal transformers', and each other however they were computed.

Float32 on both sides, so a difference is a wrong term, not a rounding: the reference and the native backend are held to
`absolute` and `relative` of the variant's row. Formats of fewer bits are held to a share of the logits' spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracle.driver import Chunk, Loaded
from tests.oracle.models import oracle_logits, prompt, rounded, with_numbers
from tests.oracle.to_gguf import write_gguf
from tests.oracle.variants import VARIANTS

pytest.importorskip("torch", reason="the oracle extra is not installed: torch")
pytest.importorskip("transformers", reason="the oracle extra is not installed: transformers")
pytest.importorskip("octavo._native", reason="the native module is not built")

Made = Callable[..., tuple[Any, Path]]
Figures = list[dict[str, Any]]
FORMATS: dict[str, tuple[dict[str, Any], float, float]] = {
    "bfloat16": ({"dtype": "auto", "quantization": None}, 0.0, 0.02),
    "int8": ({"dtype": "auto", "quantization": "int8"}, 0.01, 0.055),
    "int4": ({"dtype": "auto", "quantization": "int4"}, 0.1, 0.055),
}
"""Execution format of a bfloat16 checkpoint -> wishes; how far its weights may be from the file's, root of the mean
square over their own; the same of the logits over their spread, against the oracle with the weights as packed."""
SHARES = {1.0: 0.85, 2.0: 0.85, 3.0: 0.7}
"""A variant's `rounding` -> the least share of rows within the limit alone, which it does not widen. Measured at worst:
0.905 (Gemma 3, whose whole error is 0.041), 0.965, 0.855. An expert whose
numbers are halved leaves no row within it."""


def first_of_families(names: Iterable[str]) -> list[str]:
    """The first variant of each family among `names`."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(VARIANTS[name].family, name)
    return [*found.values()]


GGUF = [name for name, variant in VARIANTS.items() if variant.gguf]
SERVED = [(form, "bf16") for form in FORMATS] + [("int8", "int8")]
"""Format and cache; the cache's kernels do not know the weights'."""


def compare(loaded: Loaded, name: str, model: Any) -> dict[str, float]:
    """The errors over all the variant's lengths, which are asserted."""
    variant = VARIANTS[name]
    absolute = relative = 0.0
    for slot, length in enumerate(variant.lengths):
        ids = prompt(length, seed=length)
        want = oracle_logits(model, ids)
        got = loaded.chunked(ids, length, slot=slot)
        error = float(np.abs(got - want).max())
        absolute, relative = max(absolute, error), max(relative, error / float(want.std()))
    assert absolute <= variant.absolute, (name, absolute)
    assert relative <= variant.relative, (name, relative)
    return {"absolute": absolute, "relative": relative}


def cell(name: str, source: str, form: str, errors: dict[str, float]) -> dict[str, Any]:
    """One cell of docs/models.md."""
    return {"family": VARIANTS[name].family, "variant": name, "source": source, "format": form, **errors}


def served_errors(loaded: Loaded, name: str, model: Any, worst: float) -> dict[str, float]:
    """Over one prompt, for formats that round: asserted is the root of the mean square over the logits' spread, of all
    rows with the variant's `rounding`, of a share of them without."""
    variant = VARIANTS[name]
    ids = prompt(200 if 200 in variant.lengths else variant.lengths[-1], seed=200)
    want = oracle_logits(model, ids)
    off = loaded.chunked(ids, len(ids)) - want
    spread = float(want.std())
    rows = (off**2).mean(axis=1)
    assert np.sqrt(rows.mean()) <= worst * variant.rounding * spread
    assert (np.sqrt(rows) <= worst * spread).mean() >= SHARES[variant.rounding]
    return {"absolute": float(np.abs(off).max()), "relative": float(np.abs(off).max()) / spread}


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", VARIANTS)
def test_float32(made: Made, figures: Figures, name: str, backend: str) -> None:
    model, directory = made(name)
    loaded = Loaded(directory, backend, max_len=VARIANTS[name].max_len)
    errors = compare(loaded, name, model)
    loaded.close()
    if backend == "native":
        figures.append(cell(name, "directory", "float32", errors))


@pytest.mark.parametrize("name", GGUF)
def test_gguf(made: Made, figures: Figures, tmp_path: Path, name: str) -> None:
    """The same model with llama.cpp's names and conventions: the same logits."""
    variant = VARIANTS[name]
    model, directory = made(name)
    path = write_gguf(directory, str(variant.gguf), model.config.to_dict(), tmp_path / "model.gguf")
    loaded = Loaded(path, "native", max_len=variant.max_len, dtype="float32")
    errors = compare(loaded, name, model)
    loaded.close()
    figures.append(cell(name, "GGUF", "float32", errors))


def schedules(loaded: Loaded) -> None:
    """Whole, in chunks, after a prefix hit and in a batch: the same bits."""
    ids, other, third = (prompt(length, seed=seed) for seed, length in enumerate((200, 130, 37)))
    whole = loaded.chunked(ids, len(ids), slot=0)
    for size in (7, 64):
        assert (loaded.chunked(ids, size, slot=1) == whole).all(), f"chunks of {size}"
    loaded.share(0, 2, 128)
    assert (loaded.chunked(ids, 200, slot=2, start=128) == whole[128:]).all(), "after a prefix hit"
    loaded.step(Chunk(3, 0, other[:100], 1))
    rows = loaded.step(Chunk(3, 100, other[100:], 30), Chunk(1, 0, ids, 200), Chunk(2, 0, third, 1))
    assert (rows[1] == whole).all(), "in a batch"


@pytest.mark.parametrize("name", VARIANTS)
def test_bits_do_not_depend_on_the_schedule(made: Made, name: str) -> None:
    _, directory = made(name)
    loaded = Loaded(directory, "native", max_len=max(VARIANTS[name].max_len, 512))
    schedules(loaded)
    loaded.close()


@pytest.mark.parametrize(("form", "kv_dtype"), SERVED)
@pytest.mark.parametrize("name", first_of_families(VARIANTS))
def test_bits_as_served(made: Made, name: str, form: str, kv_dtype: str) -> None:
    """The same for every family as it is served: rounded activations, packed weights, either cache."""
    _, directory = made(name, "bfloat16")
    loaded = Loaded(directory, "native", max_len=512, kv_dtype=kv_dtype, **FORMATS[form][0])
    schedules(loaded)
    loaded.close()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", VARIANTS)
def test_formats_of_fewer_bits(made: Made, figures: Figures, tmp_path: Path, name: str, form: str) -> None:
    """Execution formats, natively, over one prompt. The oracle computes with the numbers that the packed weights hold:
    what differs is how activations, keys and values are rounded."""
    wishes, apart, worst = FORMATS[form]
    _, directory = made(name, "bfloat16")
    loaded = Loaded(directory, "native", max_len=VARIANTS[name].max_len, **wishes)
    numbers = loaded.numbers()
    for tensor, stored in loaded.stored().items():
        assert ((numbers[tensor] - stored) ** 2).mean() <= apart**2 * (stored**2).mean(), tensor
    model = with_numbers(directory, numbers, tmp_path)
    errors = served_errors(loaded, name, model, worst)
    loaded.close()
    figures.append(cell(name, "directory", form, errors))


@pytest.mark.parametrize("form", ["q8_0", "q4_1"])
@pytest.mark.parametrize("name", first_of_families(GGUF))
def test_quantised_gguf(made: Made, figures: Figures, tmp_path: Path, name: str, form: str) -> None:
    """Quantised linears in the file. In float32 arithmetic they are the numbers that the `gguf` package reads (and the
    oracle computes with); as served, activations are rounded too."""
    variant = VARIANTS[name]
    model, directory = made(name)
    path = write_gguf(directory, str(variant.gguf), model.config.to_dict(), tmp_path / "model.gguf", form=form)
    model = rounded(model, form)
    loaded = Loaded(path, "native", max_len=variant.max_len, dtype="float32")
    compare(loaded, name, model)
    loaded.close()
    loaded = Loaded(path, "native", max_len=variant.max_len, dtype="auto")
    errors = served_errors(loaded, name, model, FORMATS["int8"][2])
    loaded.close()
    figures.append(cell(name, "GGUF", form, errors))
