"""The real models of OCTAVO_TEST_MODELS: start, memory, W1 to W3, perplexity; llama.cpp on the same files beside."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.figures import FLOORS, octavo_command, rival_command
from bench.machine import pss_mib
from bench.quality import quality
from bench.quality_beside import beside
from bench.rows import Context, Row, not_run, shown
from bench.serving import free_port, serve
from bench.windows import windows


@dataclass(frozen=True, slots=True)
class Real:
    """A model file: its name in the folder (without regard to case) and its oracle in tests/data."""

    title: str
    file: str
    oracle: str
    groups: int = 1
    """Of layers in the KV manager; with more than one, what the windows give back is shown."""


MODELS = (
    Real("SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1.json"),
    Real(
        "Qwen2.5-Coder-0.5B Q4_K_M",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.json",
    ),
    Real("Gemma-3-270m Q4_K_M", "gemma-3-270m-base-q4_k_m.gguf", "gemma-3-270m-base-q4_k_m.json", groups=6),
)
FLOAT = {"int8": 1.0, "int4": 3.0}
"""--quantization of a float checkpoint -> percent of perplexity it may cost."""


def real_models(c: Context) -> Iterator[Row]:
    """One section a model. A model that is not in the folder is not run, and says so."""
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    files = {p.name.lower(): p for p in Path(folder).iterdir()} if folder else {}
    for model in MODELS:
        path = files.get(model.file.lower())
        if path is None:
            yield not_run(model.title, "start, memory, W1 to W3, perplexity", "reported", f"no {model.file}")
            continue
        here = replace(c, model=str(path))
        yield shown(model.title, "file", f"{path.stat().st_size / 1e6:.0f} MB")
        yield from _loads(here, model)
        if model.groups > 1:
            yield from windows(here, model.title, groups=model.groups)
        oracle = c.root / "tests" / "data" / model.oracle
        yield from quality(here, model.title, str(path), oracle)
        yield from beside(here, model.title, str(path), oracle)
        floats = files.get(path.stem.lower() + "-f32")
        for wish, limit in FLOAT.items():
            title = f"perplexity, {wish} made from float weights"
            if floats is None:
                yield not_run(model.title, title, f"within {limit:g} %", f"no directory {path.stem}-f32")
            else:
                flags = ("--quantization", wish)
                yield from quality(here, model.title, str(floats), oracle, title=title, limit=limit, flags=flags)


def _loads(c: Context, model: Real) -> Iterator[Row]:
    if importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("numpy") is None:
        yield not_run(model.title, "W1 to W3", "reported", "needs aiohttp and numpy")
        return
    from bench.load import median

    ours, theirs = [], []
    for rep in range(c.reps):
        port = free_port()
        ours.append(_one(octavo_command(c, port), port, rep))
        if c.rival:
            port = free_port()
            theirs.append(_one(rival_command(c, port), port, rep))
    answers = {"octavo": ours, "llama-server": theirs}
    for name, unit in (("start", "s"), ("memory", "MiB")):
        text = " : ".join(f"{statistics.median(r[name] for r in a):.3g}" for a in answers.values() if a)
        title = {"start": "start to first answered request", "memory": "memory after W1 to W3 (PSS)"}[name]
        yield shown(model.title, title, f"{text} {unit}", note="ours : llama-server" if theirs else "")
    mid = {who: median([r["loads"] for r in a]) for who, a in answers.items() if a}
    for name, (key, _, unit) in FLOORS.items():
        mine = mid["octavo"][name][key]
        if not theirs:
            yield not_run(model.title, f"{name} beside llama-server", "reported", f"ours {mine:.4g}; give --rival PATH")
            continue
        other = mid["llama-server"][name][key]
        text = f"{mine:.4g} : {other:.4g}"
        yield shown(model.title, f"{name} beside llama-server", text, note=f"{unit}; {mine / other:.2f} x")


def _one(command: list[str], port: int, rep: int) -> dict[str, Any]:
    from bench.load import measure

    with serve(command, port=port, model="m") as server:
        found = asyncio.run(measure(server.url, "m", ["W1", "W2", "W3"], rep=rep))
        return {"start": server.start_seconds, "memory": pss_mib(server.pid), "loads": found}


def families(c: Context) -> Iterator[Row]:
    """What docs/models.md says; CI's stage `oracle` holds it against a run."""
    section = "Families"
    text = (c.root / "docs" / "models.md").read_text()
    first = text.partition("\n## Families\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first if line.startswith("|")][2:]
    worst = max(float(row[2].split()[0]) for row in rows)
    yield shown(section, "variants compared with transformers", f"{len(rows)} of {len({r[0] for r in rows})} families")
    yield shown(section, "largest float32 logit error among them (docs/models.md)", f"{worst:.1e}")
