"""How weights are stored and multiplied: one row a format, and which checkpoint type becomes which.

    source          q4_0   q4_1   q8_0   bf16   f16    f32
    auto            int4   int4m  int8   bf16   f32    f32       nothing is lost
    float32         f32    f32    f32    f32    f32    f32       the exact mode
    bfloat16        int4   int4m  int8   bf16   bf16   bf16      float tensors are rounded, codes are kept
    + int8          as above             int8   int8   int8      float linears are quantised in groups of 32
    + int4          as above             int4m  int4m  int4m     (embedding and head: int8)

A joined linear whose parts differ takes the smallest format that holds them all without loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from octavo.errors import ConfigError, ModelError

GROUP = 32
"""Columns of K that share a scale, in weights and in q8 activations."""
FLOATS = ("f32", "f16", "bf16")
SOURCES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
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
    """Of one element or code."""
    group_bytes: int
    """Beside the codes of each group of 32: scale f16, and min f16 where there is one."""
    holds: tuple[str, ...]
    """Sources it stores without loss."""

    def storage_bytes(self, n: int, k: int) -> int:
        """Bytes of a packed [n, k]: panels of 16 rows, k up to a group (or a pair), each panel up to 64 bytes."""
        groups = -(-k // GROUP)
        codes = (
            GROUP * groups * self.bits // 8 if self.group_bytes else (k + k % 2 * (self.bits == 16)) * self.bits // 8
        )
        panel = PANEL * (codes + groups * self.group_bytes)
        return -(-n // PANEL) * (-(-panel // 64) * 64)


FORMATS: dict[str, QuantFormat] = {
    f.name: f
    for f in (
        QuantFormat("int4", "q8", 4, 2, ("q4_0",)),
        QuantFormat("int4m", "q8", 4, 4, ("q4_1",)),
        QuantFormat("int8", "q8", 8, 2, ("q8_0", "q4_0")),
        QuantFormat("bf16", "bf16", 16, 0, ("bf16",)),
        QuantFormat("f32", "f32", 32, 0, SOURCES),
    )
}
"""Smallest first."""


class Wishes(Struct, frozen=True, kw_only=True):
    """What the user asked for: `dtype` auto, float32 or bfloat16; `quantization` none (or None), int8 or int4."""

    dtype: str = "auto"
    quantization: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"--dtype: got {self.dtype!r}, allowed: auto, float32, bfloat16")
        if self.quantization not in (None, "none", "int8", "int4"):
            raise ConfigError(f"--quantization: got {self.quantization!r}, allowed: none, int8, int4")
        if self.dtype == "float32" and self.quantization in ("int8", "int4"):
            raise ConfigError(f"--quantization {self.quantization} with --dtype float32: allowed: one of the two")


class Choice(Struct, frozen=True):
    """An execution format and, for the log, what that does to the tensor."""

    format: str
    text: str


def choose(sources: Sequence[str], wishes: Wishes, *, lookup: bool = False) -> Choice:
    """The execution format of a weight whose parts are stored as `sources`.

    `lookup`: an embedding (perhaps also the head): --quantization int4 gives it int8. Raises ModelError for a source
    that has no row here.
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
    if floats and (wishes.quantization == "int8" or (wishes.quantization == "int4" and lookup)):
        return Choice("int8", "quantised to 8 bits in groups of 32")
    if floats and wishes.quantization == "int4":
        return Choice("int4m", "quantised to 4 bits in groups of 32, with a minimum")
    if floats and wishes.dtype == "bfloat16":
        lossless = all(s == "bf16" for s in sources)
        return Choice("bf16", "kept as it is" if lossless else "rounded to bfloat16")
    for row in FORMATS.values():
        if all(s in row.holds for s in sources):
            return Choice(row.name, _to_f32(sources) if row.name == "f32" else _kept(sources, row))
    raise AssertionError("f32 holds every source")


def _kept(sources: Sequence[str], row: QuantFormat) -> str:
    if len(set(sources)) > 1:
        return "joined without loss"
    return "kept as it is" if row.name == "bf16" else "repacked without loss"


def _to_f32(sources: Sequence[str]) -> str:
    return "kept as it is" if set(sources) == {"f32"} else "widened to float32"


def quantises(wishes: Wishes) -> bool:
    """Whether float linears are to be stored in fewer bits."""
    return wishes.quantization in ("int8", "int4")
