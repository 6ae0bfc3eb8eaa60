"""What a coarser activation scale costs: perplexity of texts with every linear's input rounded to int8, by group size.

    python bench/q8_groups.py MODEL ORACLE.json

Scales are free (amax / 127), for groups of 32 also powers of two, as served. Weights stay as the file has them and
everything else is float32, so only the activation rounding differs. Texts: the first 1,024 ids of the oracle's two
longest different prompts. Result: docs/decisions/0002-q8-groups.md.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo.kernels import BACKENDS
from octavo.kernels.reference import linear, rows
from octavo.models.registry import build_program
from octavo.program.executable import Limits
from octavo.program.formats import choose_formats
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.program.lower import lower
from octavo.quant.table import Wishes
from octavo.weights.checkpoint import open_checkpoint

LENGTH, CHUNK, BLOCK = 1024, 512, 16


def rounded(x: Any, group: int) -> Any:
    """x [M, K] through int8 codes with one scale a group of columns (0: a row)."""
    m, k = x.shape
    group = group or k
    padded = np.pad(x, ((0, 0), (0, -k % group))).reshape(m, -1, group)
    amax = np.abs(padded).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(amax > 0, np.rint(padded * (np.float32(127) / amax)), 0)
    return (codes * (amax / np.float32(127))).reshape(m, -1)[:, :k].astype(np.float32)


def as_served(x: Any) -> Any:
    """x [M, K] through q8 codes: groups of 32, scales that are powers of two."""
    codes, scale, _ = rows.quantize(x)
    return rows.dequantize(codes, scale)


ROUNDINGS: tuple[tuple[str, Callable[[Any], Any] | None], ...] = (
    ("float32", None),
    ("32", partial(rounded, group=32)),
    ("32, 2^e", as_served),
    ("64", partial(rounded, group=64)),
    ("128", partial(rounded, group=128)),
    ("one a token", partial(rounded, group=0)),
)


def mean_nll(executable: ReferenceExecutable, ids: list[int]) -> float:
    for group, table in enumerate(executable.inputs["table"]):  # one pool: every group of layers has blocks of its own
        table[0] = 1 + group * (LENGTH // BLOCK) + np.arange(LENGTH // BLOCK)
    executable.tokens[0, : len(ids)] = ids
    total = 0.0
    for first in range(0, len(ids), CHUNK):
        count = min(CHUNK, len(ids) - first)
        for name, value in (("count", count), ("start", first), ("kv_len", first + count), ("rows", count)):
            executable.inputs[name][0] = value
        executable.forward(1)
        scored = min(count, len(ids) - 1 - first)
        total -= sum(executable.logprobs(r, ids[first + r + 1], 0)[0] for r in range(scored))
    return total / (len(ids) - 1)


def main() -> None:
    checkpoint = open_checkpoint(sys.argv[1])
    prompts = {p["name"]: p["prompt_ids"] for p in json.loads(Path(sys.argv[2]).read_text())["prompts"]}
    texts = [prompts["long_chat"][:LENGTH], prompts["long_raw"][:LENGTH]]
    program = build_program(checkpoint.config)
    formats = choose_formats(program, checkpoint.tensors, Wishes(dtype="float32"))
    limits = Limits(max_tokens=CHUNK, max_rows=CHUNK, max_seqs=1, max_len=LENGTH, block_size=BLOCK)
    spec = lower(program, formats.by_weight, limits, BACKENDS["reference"], kv_dtype="f32")
    weights = load_weights(spec, checkpoint.tensors)
    dense, base = linear.dense, None
    for name, through in ROUNDINGS:
        if through is not None:
            linear.dense = lambda x, w, b=None, r=through: dense(r(x), w, b)
        blocks = len(spec.kv) * (LENGTH // BLOCK) + 1
        nll = [mean_nll(ReferenceExecutable(spec, weights, num_blocks=blocks), ids) for ids in texts]
        base = base or nll
        change = [100 * math.expm1(a - b) for a, b in zip(nll, base, strict=True)]
        pooled = 100 * math.expm1((sum(nll) - sum(base)) / len(nll))
        print(f"{name:>12}: perplexity {', '.join(f'{c:+.2f} %' for c in change)}; pooled {pooled:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
