"""ExecutableSpec: a Program with buffer dtypes, fusions and places; what a backend runs, minus addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from octavo.kernels import OPS
from octavo.program.ir import ACTIVATIONS, Host, Op, Program, Rows, Weight, weights_of
from octavo.quant.table import FORMATS, GROUP

KV_ITEMSIZE = {"bf16": 2, "f32": 4, "int8": 1}
KV_SCALE_BYTES = {"bf16": 0, "f32": 0, "int8": 2}
"""Of K or V of one token and KV head."""


def row_bytes(dtype: str, width: int) -> int:
    """Stride of a row: elements (q8: codes up to a group, then scales, then sums, f32 each; q8t: one of each, the
    sum i32), up to 64 bytes."""
    match dtype:
        case "f32" | "i32":
            size = 4 * width
        case "bf16":
            size = 2 * width
        case "q8":
            groups = -(-width // GROUP)
            size = groups * (GROUP + 8)
        case "q8t":
            size = -(-width // GROUP) * GROUP + 8
        case _:
            raise AssertionError(dtype)
    return -(-size // 64) * 64


class Limits(Struct, frozen=True, kw_only=True):
    """The largest step, and the longest sequence."""

    max_tokens: int
    max_rows: int
    max_seqs: int
    max_len: int
    block_size: int

    @property
    def max_blocks(self) -> int:
        """Entries of a block table."""
        return -(-self.max_len // self.block_size)

    def rows(self, rows: Rows) -> int:
        return {Rows.T: self.max_tokens, Rows.R: self.max_rows, Rows.B: self.max_seqs}[rows]


class PlacedBuffer(Struct, frozen=True):
    name: str
    rows: Rows
    width: int
    dtype: str
    offset: int
    """In the activation arena, bytes."""
    size: int
    """Bytes at the largest step."""
    times: int = 1
    """Rows for each of `rows`."""

    @property
    def stride(self) -> int:
        return row_bytes(self.dtype, self.width)


class PlacedWeight(Struct, frozen=True):
    """A weight that is used, with its execution format ("vec" for vectors and tables)."""

    weight: Weight
    format: str
    n: int
    """Rows of a matrix (of each expert's); elements of a vec; positions times columns of a table."""
    k: int

    @property
    def bytes(self) -> int:
        return 4 * self.n if self.format == "vec" else self.weight.experts * self.stride

    @property
    def stride(self) -> int:
        """Packed bytes of a matrix, or of one expert's."""
        return FORMATS[self.format].storage_bytes(self.n, self.k)


class KVSpec(Struct, frozen=True):
    name: str
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int | None = None
    places: int = 0
    """Layers a block has room for; 0: as many as there are."""

    @property
    def position_bytes(self) -> int:
        """K and V of one position in one layer."""
        return 2 * self.kv_heads * (self.head_dim * KV_ITEMSIZE[self.dtype] + KV_SCALE_BYTES[self.dtype])

    @property
    def block_bytes(self) -> int:
        """K and V of block_size positions, all layers, padding places included."""
        return (self.places or self.layers) * self.block_size * self.position_bytes


class Piece(Struct, frozen=True):
    """A run of ops [first, end) of one segment that all run on the device, or all on the host."""

    name: str
    first: int
    end: int
    host: bool


class ExecutableSpec(Struct, frozen=True):
    """Lowered for one backend. Op views index `buffers`; ops name weights, whose index is their place in `weights`."""

    program: Program
    backend: str
    limits: Limits
    buffers: tuple[PlacedBuffer, ...]
    weights: tuple[PlacedWeight, ...]
    kv: tuple[KVSpec, ...]
    ops: tuple[Op, ...]
    segments: Mapping[str, tuple[int, int]]
    """name -> (first op, one past the last): embed, layers, layers.0 …, head."""
    arena_bytes: int
    logits: int
    notes: tuple[str, ...] = ()
    """Warnings: host ops, by name."""

    @property
    def hosted(self) -> bool:
        """Whether some ops are the reference's (program/host.py)."""
        return any(isinstance(op, Host) for op in self.ops)

    @property
    def hosted_bytes(self) -> int:
        """The float32 copies of their weights."""
        names = {name for op in self.ops if isinstance(op, Host) for name in weights_of(op)}
        return sum(4 * w.weight.experts * w.n * w.k for w in self.weights if w.weight.name in names)

    @property
    def weights_bytes(self) -> int:
        return sum(w.bytes for w in self.weights)

    @property
    def block_bytes(self) -> int:
        """One block, of whichever group; 0 for a Program without attention."""
        return self.kv[0].block_bytes if self.kv else 0

    def ropes(self) -> list[str]:
        """For the log: rope factors that the longest sequence fixes (invariance: they depend on nothing else)."""
        specs = dict.fromkeys(w.weight.table[0] for w in self.weights if w.weight.table)
        notes = (spec.note(self.limits.max_len) for spec in specs)
        return [f"rope {note}" for note in notes if note]

    def pieces(self) -> tuple[Piece, ...]:
        """The ops cut at segment borders and at host ops, in order."""
        borders = {first for name, (first, _) in self.segments.items() if name != "layers"}
        out: list[Piece] = []
        for i, op in enumerate(self.ops):
            host = isinstance(op, Host)
            if not out or i in borders or out[-1].host != host:
                out.append(Piece(f"piece.{len(out)}", i, i + 1, host))
            else:
                out[-1] = replace(out[-1], end=i + 1)
        return tuple(out)

    def native(self, addresses: Mapping[str, int], *, kv: tuple[int, int], arena: object) -> dict[str, Any]:
        """The dict of docs/dev/native-abi.md. With host ops its segments are the device pieces (host.py drives them).

        addresses: packed bytes of each weight by name; kv: (address, num_blocks) of the pool that all groups share;
        arena: for activations.
        """
        index = {w.weight.name: i for i, w in enumerate(self.weights)}
        limits = self.limits
        segments = dict(self.segments)
        if self.hosted:
            segments = self._device_pieces()
        return {
            "buffers": [(b.dtype, b.width, b.rows.value, b.offset, b.times) for b in self.buffers],
            "weights": [(w.format, w.n, w.k, addresses[w.weight.name]) for w in self.weights],
            "arena": arena,
            "kv": [
                {
                    "dtype": g.dtype,
                    "block_size": g.block_size,
                    "kv_heads": g.kv_heads,
                    "head_dim": g.head_dim,
                    "layers": g.layers,
                    "address": kv[0],
                    "num_blocks": kv[1],
                    "block_bytes": g.block_bytes,
                    "window": g.window or 0,
                }
                for g in self.kv
            ],
            "limits": {
                "max_tokens": limits.max_tokens,
                "max_rows": limits.max_rows,
                "max_seqs": limits.max_seqs,
                "max_blocks": limits.max_blocks,
                "max_len": limits.max_len,
            },
            "vocab": self.program.vocab_size,
            "ops": [encode(op, index) for op in self.ops if not isinstance(op, Host)],
            "segments": segments,
        }

    def _device_pieces(self) -> dict[str, tuple[int, int]]:
        """Device pieces by name, in the numbering of the device's own ops (host ops left out)."""
        found: dict[str, tuple[int, int]] = {}
        at = 0
        for piece in self.pieces():
            if not piece.host:
                found[piece.name] = (at, at + piece.end - piece.first)
                at += piece.end - piece.first
        return found


def encode(op: Op, index: Mapping[str, int]) -> tuple[object, ...]:
    """An op as the native interface takes it: its kind, then its fields flattened by the op table."""
    assert not isinstance(op, Host), "a host op is not the native backend's"
    out: list[object] = [op.kind]
    for name, how in OPS[op.kind]:
        value = getattr(op, name)
        if how == "view":
            out += value.flat()
        elif how == "buffer":
            out.append(value.buffer)
        elif how == "weight":
            out.append(-1 if value is None else index[value])
        elif how == "activation":
            out.append(ACTIVATIONS.index(value))
        elif how == "int":
            out.append(int(value))
        else:
            out.append(float(value))
    return tuple(out)
