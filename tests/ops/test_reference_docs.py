"""Every op kind has a reference, whose docstring gives shapes, dtypes and the source of the formula."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo.kernels import OPS
from octavo.kernels.reference import attend, experts, linear, rows

DOCS = Path(__file__).parents[2] / "docs" / "numerics.md"
REFERENCE: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "embed": (rows.embed,),
    "linear": (linear.dense, linear.grouped),
    "head": (linear.dense,),
    "norm": (rows.rms_norm,),
    "rope": (rows.rope,),
    "kv_write": (attend.kv_write,),
    "attend": (attend.attend,),
    "act": tuple(rows.ACTIVATIONS.values()),
    "add": (rows.add,),
    "scale": (rows.scale,),
    "gather": (rows.gather,),
    "route": (experts.route,),
    "expert_linear": (experts.expert_linear,),
    "combine": (experts.combine,),
    "cast": (rows.round_bf16, rows.quantize),
}
"""Op kind -> what states its arithmetic. A host op (ops.Host) is one of these, computed elsewhere."""


def test_every_kind_has_a_reference() -> None:
    assert REFERENCE.keys() == OPS.keys()


@pytest.mark.parametrize("function", sorted({f for fs in REFERENCE.values() for f in fs}, key=lambda f: f.__name__))
def test_docstrings_give_shapes_dtypes_and_source(function: Callable[..., Any]) -> None:
    text = inspect.getdoc(function) or ""
    assert re.search(r"\b(f32|bf16|int8|i32|i64) \[[^\]]+\]", text), f"a shape with its dtype: {text}"
    arrays = [n for n, p in inspect.signature(function).parameters.items() if re.search("F32|I32|I8|NDArray", str(p))]
    assert arrays
    for name in arrays:
        assert re.search(rf"\b{name}\b", text), f"{name}: {text}"
    (source,) = re.findall(r"Source:\s+(.*)", text, re.DOTALL)
    assert re.search(r"\b(19|20)\d\d\b|docs/numerics\.md", source), source
    if section := re.search(r'docs/numerics\.md, "([^"]+)"', source):
        assert re.search(rf"^## {re.escape(section[1])}(:|$)", DOCS.read_text(), re.MULTILINE), section[1]
