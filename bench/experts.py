"""Step time of a random mixture of experts against the bytes it reads: `python -m bench.experts`.

A Qwen3-MoE of random 4-bit blocks; every step has new tokens, so that other experts are visited and the weights come
from memory. Bytes are those that program/cost.py counts (experts visited, once each); the bandwidth beside them is
what bench/hwbw.c reads.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import bandwidth
from octavo.kernels import BACKENDS
from octavo.kernels.native import team_on, team_seats
from octavo.models.registry import build_program
from octavo.program.cost import Step, step_cost
from octavo.program.executable import Limits
from octavo.program.formats import choose_formats
from octavo.program.lower import lower
from octavo.quant.table import Wishes
from octavo.runner.native import NativeBackend
from octavo.weights.tensors import Tensor

CONTEXT = 64


def random_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Q4_1 blocks where the shape is a matrix of whole blocks, else float32."""
    source = "q4_1" if len(shape) == 2 and not name.endswith("mlp.gate.weight") else "f32"

    def load() -> memoryview:
        rng = np.random.default_rng(abs(hash(name)))
        if source == "f32":
            return memoryview((1 + 0.1 * rng.standard_normal(shape)).astype(np.float32).tobytes())
        blocks = rng.integers(0, 256, (math.prod(shape) // 32, 20), dtype=np.uint8)
        scale = np.float16(0.2 / math.sqrt(shape[1]))
        blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
        blocks[:, 2:4] = np.frombuffer(np.float16(-7.5 * scale).tobytes(), np.uint8)
        return memoryview(blocks.tobytes())

    return Tensor(name, source, shape, load)


def backend(options: argparse.Namespace) -> NativeBackend:
    """The model, loaded and ready."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": options.inner,
        "moe_intermediate_size": options.inner,
        "num_experts": options.experts,
        "num_experts_per_tok": options.chosen,
        "norm_topk_prob": True,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    }
    program = build_program(config)
    tensors = {
        part.tensor: random_tensor(part.tensor, (part.rows,) if w.kind == "vec" else (part.rows, w.k))
        for w in program.weights.values()
        for part in w.parts
    }
    formats = choose_formats(program, tensors, Wishes())
    limits = Limits(max_tokens=max(options.tokens), max_rows=8, max_seqs=64, max_len=1024, block_size=16)
    spec = lower(program, formats.by_weight, limits, BACKENDS["native"])
    made = NativeBackend(spec, team_on(team_seats(threads=options.threads)), num_blocks=64 * 64 + 1)
    made.pack(tensors, progress=lambda nbytes: None)
    made.start({})
    return made


def seconds(made: NativeBackend, tokens: int, steps: int, rng: np.random.Generator) -> float:
    """Of a step of `tokens` sequences, one token each (of one sequence from 64 on): the first decile, for others use
    this machine too."""
    seqs, count = (tokens, 1) if tokens <= 64 else (1, tokens)
    found = []
    for _ in range(steps):
        made.tokens[:] = rng.integers(0, 4096, made.tokens.shape)
        for b in range(seqs):
            values = {
                "slot": b,
                "count": count,
                "start": CONTEXT,
                "kv_len": CONTEXT + count,
                "rows": int(b < 8),
                "skip": 0,
            }
            for name, value in values.items():
                made.inputs[name][b] = value
            made.inputs["table"][0][b] = 1 + 64 * b + np.arange(made.inputs["table"][0].shape[1])
        began = time.perf_counter()
        made.forward(seqs)
        found.append(time.perf_counter() - began)
    return float(np.quantile(found, 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"width": 512, "inner": 256, "experts": 64, "chosen": 8, "layers": 16, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stages", action="store_true", help="time by stage")
    options = parser.parse_args()
    measured = bandwidth(Path(__file__).with_name("hwbw.c")) or {}
    top = measured.get("read_gb_s_all", math.nan)
    made = backend(options)
    rng = np.random.default_rng(0)
    print(f"weights {made._spec.weights_bytes / 1e6:.0f} MB, bandwidth {top:.1f} GB/s")
    for tokens in options.tokens:
        seconds(made, tokens, 5, rng)
        if options.stages:
            made.exe.profile(True)
        took = seconds(made, tokens, options.steps, rng)
        step = Step(tokens, min(tokens, 8), tokens, CONTEXT) if tokens <= 64 else Step(tokens, 1, 1, CONTEXT + tokens)
        cost = step_cost(made._spec, step)
        read = cost.weights + cost.kv
        print(
            f"{tokens:4} tokens: {took * 1e3:8.3f} ms, {read / 1e6:7.1f} MB, {read / took / 1e9:6.1f} GB/s "
            f"({read / took / 1e9 / top:.0%}), {cost.flops / took / 1e9:7.1f} GFLOP/s"
        )
        if options.stages:
            by_kind: dict[str, tuple[float, int]] = {}
            for ops, spent, calls in made.exe.timings():
                known = by_kind.get(ops, (0.0, 0))
                by_kind[ops] = (known[0] + spent, known[1] + calls)
            for ops, (spent, calls) in sorted(by_kind.items(), key=lambda k: -k[1][0]):
                print(f"       {spent / options.steps * 1e3:8.3f} ms  {calls // options.steps:4} x {ops}")
            made.exe.profile(False)
    made.close()


if __name__ == "__main__":
    main()
