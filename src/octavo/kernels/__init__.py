"""The op table: each kind's fields in the native call's order, and what each backend can do with it.

A backend is a row here, a reference kernel a function of `octavo.kernels.reference`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

OPS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "embed": (("out", "buffer"), ("weight", "weight")),
    "linear": (
        ("x", "buffer"),
        ("out", "view"),
        ("weight", "weight"),
        ("bias", "weight"),
        ("accumulate", "int"),
        ("scale", "float"),
    ),
    "norm": (("x", "view"), ("out", "view"), ("weight", "weight"), ("eps", "float"), ("per_head", "int")),
    "rope": (("x", "view"), ("out", "view"), ("cos", "weight"), ("sin", "weight"), ("rotary", "int")),
    "kv_write": (("k", "view"), ("v", "view"), ("group", "int"), ("layer", "int"), ("balance", "weight")),
    "attend": (
        ("q", "view"),
        ("out", "view"),
        ("group", "int"),
        ("layer", "int"),
        ("scale", "float"),
        ("softcap", "float"),
        ("balance", "weight"),
    ),
    "act": (("gate", "view"), ("up", "view"), ("out", "view"), ("fn", "activation")),
    "add": (("a", "view"), ("b", "view"), ("out", "view"), ("scale", "float")),
    "scale": (("x", "view"), ("out", "view"), ("factor", "float"), ("softcap", "float")),
    "gather": (("x", "buffer"), ("out", "buffer")),
    "route": (("x", "view"), ("ids", "buffer"), ("out", "buffer"), ("norm", "int"), ("factor", "float")),
    "expert_linear": (
        ("x", "buffer"),
        ("ids", "buffer"),
        ("out", "buffer"),
        ("weight", "weight"),
        ("experts", "int"),
    ),
    "combine": (("x", "view"), ("weights", "buffer"), ("out", "view")),
    "cast": (("x", "view"), ("out", "view")),
    "head": (("x", "buffer"), ("out", "buffer"), ("weight", "weight")),
}
"""kind -> (field, how it is flattened): a view is (buffer, offset, heads, stride, width); an absent weight is -1;
an activation is its place in ir.ACTIVATIONS."""


class BackendTable(Struct, frozen=True):
    """What lowering may ask of a backend."""

    name: str
    kinds: frozenset[str]
    """Ops it runs; another becomes a host op."""
    outputs: Mapping[str, tuple[str, ...]]
    """kind -> dtypes beside f32 that it can write directly; others are written as f32 and cast."""
    fuses: bool
    """Whether the peephole fusions (residual add into linear, adjacent ropes) are applied."""
    reuses: bool
    """Whether buffers share memory by lifetime."""


_ANY = ("bf16", "q8", "q8t")
BACKENDS: Mapping[str, BackendTable] = {
    "native": BackendTable(
        "native",
        frozenset(OPS),
        {
            "norm": _ANY,
            "act": _ANY,
            "attend": _ANY,
            "cast": _ANY,
            "combine": _ANY,
            "linear": ("bf16",),
            "expert_linear": ("bf16",),
        },
        fuses=True,
        reuses=True,
    ),
    # The reference may as well run what the native backend runs: values then compare op by op.
    "reference": BackendTable(
        "reference",
        frozenset(OPS),
        {
            "norm": _ANY,
            "act": _ANY,
            "attend": _ANY,
            "cast": _ANY,
            "combine": _ANY,
            "linear": _ANY,
            "expert_linear": _ANY,
        },
        fuses=False,
        reuses=True,
    ),
}
