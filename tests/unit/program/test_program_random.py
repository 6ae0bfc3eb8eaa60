"""Random programs: whatever is fused, cast, pruned and placed, the numbers are the plain program's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from octavo.kernels import BACKENDS
from octavo.program.builder import Builder
from octavo.program.executable import ExecutableSpec, Limits
from octavo.program.interpret import ReferenceExecutable
from octavo.program.ir import Program, View
from octavo.program.lower import lower
from octavo.program.rope import RopeSpec

WIDTH, VOCAB, TOKENS = 48, 16, 5
LIMITS = Limits(max_tokens=TOKENS, max_rows=TOKENS, max_seqs=1, max_len=16, block_size=8)
STEPS = st.lists(
    st.sampled_from(["block", "mlp", "share", "twice", "unread", "rope", "norm", "peek", "raw"]), max_size=6
)


def build(steps: list[str], dtypes: list[str | None]) -> Program:
    """A residual stream with a random sequence of pieces; `dtypes` states some buffers' dtypes."""
    b = Builder("random", vocab_size=VOCAB, max_len=16)
    stated = iter(dtypes)

    def linear(x: View, n: int, name: str) -> View:
        weight = b.linear_weight({f"{name}.weight": n}, x.columns)
        y = b.linear(x, weight, b.vector({f"{name}.bias": n}), name=name)
        dtype = next(stated, None)
        b._buffers[y.buffer] = replace(b._buffers[y.buffer], dtype=dtype)
        return y

    with b.segment("embed"):
        h = b.embed(b.linear_weight({"embed": VOCAB}, WIDTH), name="hidden")
    for i, step in enumerate(steps):
        with b.segment(f"layers.{i}"):
            x = b.norm(h, b.vector({f"{i}.norm": WIDTH}), eps=1e-5, name=f"{i}.norm")
            match step:
                case "block":
                    b.add_to(h, linear(x, WIDTH, f"{i}.a"))
                case "mlp":
                    y = linear(x, 2 * WIDTH, f"{i}.gate_up")
                    a = b.act(y.part(0, WIDTH), y.part(WIDTH, WIDTH), name=f"{i}.act")
                    b.add_to(h, linear(a, WIDTH, f"{i}.down"))
                case "share":  # two linears, perhaps of two formats, read one buffer
                    b.add_to(h, linear(x, WIDTH, f"{i}.a"))
                    b.add_to(h, linear(x, WIDTH, f"{i}.b"))
                case "twice":  # the stream is read between a linear and its add: no fusion
                    y = linear(x, WIDTH, f"{i}.a")
                    z = b.norm(h, b.vector({f"{i}.norm2": WIDTH}), eps=1e-5, name=f"{i}.norm2")
                    b.add_to(h, y)
                    b.add_to(h, linear(z, WIDTH, f"{i}.b"))
                case "peek":  # what is added is also read elsewhere: no fusion
                    y = linear(x, WIDTH, f"{i}.a")
                    b.add_to(h, y)
                    b.add_to(h, b.norm(y, b.vector({f"{i}.norm2": WIDTH}), eps=1e-5, name=f"{i}.norm2"))
                case "raw":  # a linear over the stream itself, before and after it changes
                    b.add_to(h, linear(h, WIDTH, f"{i}.a"))
                    b.add_to(h, linear(h, WIDTH, f"{i}.b"))
                case "unread":
                    linear(x, WIDTH, f"{i}.dead")
                case "rope":
                    y = linear(x, WIDTH, f"{i}.qk")
                    b.rope(y.part(0, 32).split(2), RopeSpec(16, 100.0))
                    b.rope(y.part(32, 16).split(1), RopeSpec(16, 100.0))
                    b.add_to(h, y)
                case _:
                    b.add_to(h, x)
    with b.segment("head"):
        out = b.norm(b.gather(h, name="rows"), b.vector({"norm": WIDTH}), eps=1e-5, name="norm")
        b.head(out, b.linear_weight({"embed": VOCAB}, WIDTH))
    return b.build()


def run(spec: ExecutableSpec, numbers: dict[str, Any]) -> Any:
    executable = ReferenceExecutable(spec, numbers, num_blocks=1)
    executable.arena[:] = 0xFF  # NaN: nothing may depend on what a buffer held before
    executable.tokens[0, :TOKENS] = np.arange(TOKENS)
    executable.inputs["count"][0] = executable.inputs["rows"][0] = TOKENS
    executable.forward(1)
    return np.stack([executable.logits(r) for r in range(TOKENS)])


@settings(deadline=None, max_examples=60)
@given(
    STEPS,
    st.lists(st.sampled_from([None, None, "f32", "bf16"]), max_size=6),
    st.lists(st.sampled_from(["f32", "bf16", "int8"]), min_size=16, max_size=16),
    st.booleans(),
)
def test_lowering_changes_no_bit(steps: list[str], dtypes: list[str | None], formats: list[str], direct: bool) -> None:
    program = build(steps, dtypes)
    rng = np.random.default_rng(len(steps))
    numbers = {
        w.name: w.make(16) if w.kind == "table" else rng.standard_normal((w.n, w.k)).astype(np.float32).squeeze()
        for w in program.weights.values()
    }
    linears = [w.name for w in program.weights.values() if w.kind == "linear"]
    chosen = {name: formats[i % len(formats)] for i, name in enumerate(linears)}
    native = (
        BACKENDS["native"] if direct else replace(BACKENDS["native"], outputs={"linear": ("bf16",), "cast": ("q8",)})
    )
    plain = replace(native, fuses=False, reuses=False)
    got, want = (run(lower(program, chosen, LIMITS, table), numbers) for table in (native, plain))
    assert np.isfinite(want).all()
    assert (got == want).all()


def test_a_cast_is_made_again_after_its_source_changes() -> None:
    program = build(["raw"], [])
    chosen = {w.name: "int8" for w in program.weights.values() if w.kind == "linear"}
    spec = lower(program, chosen, LIMITS, BACKENDS["native"])
    assert [b.name for b in spec.buffers].count("hidden as q8") == 2
    shared = lower(build(["share"], []), chosen | {"0.b.weight": "int8"}, LIMITS, BACKENDS["native"])
    assert "cast" not in [op.kind for op in shared.ops]
