"""How weights are stored and multiplied: one row a format, and which checkpoint type becomes which.

    source          block types          bf16   f16    f32
    auto            see FORMATS          bf16   f32    f32       nothing is lost
    float32         f32                  f32    f32    f32       the exact mode
    bfloat16        as auto              bf16   bf16   bf16      float tensors are rounded, codes are kept
    + int8          as auto              int8   int8   int8      float linears are quantised in groups of 32
    + int4          as auto              int4m  int4m  int4m     (int8: see program/precision.py)
    + compressed-tensors   q8_0c, s8c become int8t; others as auto

A block type takes the smallest format that holds it without loss, and there is one of about its own size for each. A
joined linear whose parts differ takes the smallest format that holds them all, or is split (program/split.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from octavo.errors import ConfigError, ModelError

GROUP = 32
"""Columns of K that share a scale, in weights and in q8 activations. A row of q8t has one scale."""
SUPER = 8
"""Groups that share the scale of their scales, where a format has one."""
FLOATS = ("f32", "f16", "bf16")
GGUF_BLOCKS = (
    "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
)  # fmt: skip
BY_TOKEN = ("q8_0c", "s8c")
"""q8_0 and s8 with one scale a row, of a checkpoint that says int8 activations with one scale a token (W8A8)."""
SOURCES = (*FLOATS, *GGUF_BLOCKS, "z4", "s8", *BY_TOKEN)
"""What a tensor may be stored as; z4 and s8 are how readers of directories hand over packed 4- and 8-bit weights."""
LOOKED_UP = ("iq4_nl", "iq4_xs", "mxfp4")
"""Sources whose 4-bit codes are indices of 8-bit ones."""
PACKED = "packed."
"""Before an execution format: the source of a matrix that is packed already."""
PANEL = 16
"""Rows of a weight (columns of the result) are packed in panels of 16."""


class QuantFormat(Struct, frozen=True):
    """One execution format. Arithmetic: docs/numerics.md, "Linear"."""

    name: str
    activation: str
    """Buffer dtype its matmul reads."""
    bits: int
    """Of one element, code or index of a code."""
    group_bytes: int
    """Beside the codes of each group of 32: scales, and minima or zeros where there are some."""
    holds: tuple[str, ...]
    """Sources it stores without loss."""
    super_bytes: int = 0
    """Of each 8 groups: the f16 scale of their scales, and of their minima."""
    column_bytes: int = 0
    """Of each row of the weight: its scale, where there is one."""
    asked: bool = False
    """Only where the user asks for it: it rounds activations more coarsely than others that hold the same."""

    def storage_bytes(self, n: int, k: int) -> int:
        """Bytes of a packed [n, k]: panels of 16 rows, k up to a group (or a pair), each panel up to 64 bytes."""
        groups = -(-k // GROUP)
        codes = GROUP * groups * self.bits // 8 if self.bits <= 8 else (k + k % 2 * (self.bits == 16)) * self.bits // 8
        scales = groups * self.group_bytes + -(-groups // SUPER) * self.super_bytes + self.column_bytes
        panel = PANEL * (codes + scales)
        return -(-n // PANEL) * (-(-panel // 64) * 64)


FORMATS: dict[str, QuantFormat] = {
    f.name: f
    for f in (
        QuantFormat("int2k", "q8", 2, 2, ("q2_k",), super_bytes=4),
        QuantFormat("int3k", "q8", 3, 2, ("q3_k",), super_bytes=2),
        QuantFormat("int4e", "q8", 4, 1, ("mxfp4",)),
        QuantFormat("int4x", "q8", 4, 1, ("iq4_xs",), super_bytes=2),
        QuantFormat("int4", "q8", 4, 2, ("q4_0",)),
        QuantFormat("int4n", "q8", 4, 2, ("iq4_nl",)),
        QuantFormat("int4k", "q8", 4, 2, ("q4_k",), super_bytes=4),
        QuantFormat("int4z", "q8", 4, 3, ("z4",)),
        QuantFormat("int4m", "q8", 4, 4, ("q4_1",)),
        QuantFormat("int5", "q8", 5, 2, ("q5_0", "q4_0")),
        QuantFormat("int5k", "q8", 5, 2, ("q5_k", "q4_k"), super_bytes=4),
        QuantFormat("int5m", "q8", 5, 4, ("q5_1", "q4_1")),
        QuantFormat("int6k", "q8", 6, 2, ("q6_k", "q3_k"), super_bytes=2),
        QuantFormat("int8t", "q8t", 8, 0, BY_TOKEN, column_bytes=4, asked=True),
        QuantFormat("int8", "q8", 8, 2, ("q8_0", "q5_0", "q4_0", "iq4_nl", "q8_0c")),
        QuantFormat("int8f", "q8", 8, 4, ("s8", "iq4_xs", "mxfp4", "q8_0", "q5_0", "q4_0", "iq4_nl", *BY_TOKEN)),
        QuantFormat("bf16", "bf16", 16, 0, ("bf16",)),
        QuantFormat("f32", "f32", 32, 0, SOURCES),
    )
}
"""Smallest first."""


AS_SAID = "compressed-tensors"
"""The --quantization (vLLM's word) that has activations quantised as the checkpoint's scheme says."""


class Wishes(Struct, frozen=True, kw_only=True):
    """What the user asked for: `dtype` auto, float32 or bfloat16; `quantization` none (or None), int8, int4 or
    compressed-tensors (activations as the checkpoint says)."""

    dtype: str = "auto"
    quantization: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"--dtype: got {self.dtype!r}, allowed: auto, float32, bfloat16")
        if self.quantization not in (None, "none", "int8", "int4", AS_SAID):
            raise ConfigError(f"--quantization: got {self.quantization!r}, allowed: none, int8, int4, {AS_SAID}")
        if self.dtype == "float32" and self.quantization in ("int8", "int4", AS_SAID):
            raise ConfigError(f"--quantization {self.quantization} with --dtype float32: allowed: one of the two")


class Choice(Struct, frozen=True):
    """An execution format and, for the log, what that does to the tensor."""

    format: str
    text: str


def choose(sources: Sequence[str], wishes: Wishes, *, eight: bool = False) -> Choice:
    """The execution format of a weight whose parts are stored as `sources`.

    `eight`: --quantization int4 gives it int8 (program/precision.py). Raises ModelError for a source that has no row
    here.
    """
    if sources[0].startswith(PACKED):
        assert len(sources) == 1, sources
        if wishes.dtype == "float32":
            raise ConfigError("--dtype: got 'float32', allowed: auto (the model is packed for its kernels)")
        return Choice(sources[0].removeprefix(PACKED), "copied as it is")
    for source in sources:
        if source not in SOURCES:
            raise ModelError(f"tensor type: got {source}, allowed: {', '.join(SOURCES)}")
    floats = all(s in FLOATS for s in sources)
    if wishes.dtype == "float32":
        return Choice("f32", _to_f32(sources))
    if floats and (wishes.quantization == "int8" or (wishes.quantization == "int4" and eight)):
        return Choice("int8", "quantised to 8 bits in groups of 32")
    if floats and wishes.quantization == "int4":
        return Choice("int4m", "quantised to 4 bits in groups of 32, with a minimum")
    if floats and wishes.dtype == "bfloat16":
        lossless = all(s == "bf16" for s in sources)
        return Choice("bf16", "kept as it is" if lossless else "rounded to bfloat16")
    for row in FORMATS.values():
        if all(s in row.holds for s in sources) and (not row.asked or wishes.quantization == AS_SAID):
            return Choice(row.name, _to_f32(sources) if row.name == "f32" else _kept(sources, row))
    raise AssertionError("f32 holds every source")


def _kept(sources: Sequence[str], row: QuantFormat) -> str:
    if row.asked:
        return "repacked without loss, activations with one scale a token"
    if row.bits == 8 and any(s in LOOKED_UP for s in sources):
        return "converted upward without loss (its codes stand for 8-bit numbers)"
    if len(set(sources)) > 1:
        return "joined without loss"
    return "kept as it is" if row.name == "bf16" else "repacked without loss"


def _to_f32(sources: Sequence[str]) -> str:
    return "kept as it is" if set(sources) == {"f32"} else "widened to float32"


def quantises(wishes: Wishes) -> bool:
    """Whether float linears are to be stored in fewer bits."""
    return wishes.quantization in ("int8", "int4")
