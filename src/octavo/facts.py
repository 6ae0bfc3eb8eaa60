"""What the brain learns from the runner once, at start: plain numbers, so that scheduling needs no arrays."""

from __future__ import annotations

import msgspec


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table."""

    name: str
    kind: str
    """"full" (every position is kept); "sliding" and "state" come with their families."""
    layers: int
    window: int | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The model and executor as the scheduler and the front end see them."""

    model_name: str
    architecture: str
    vocab_size: int
    model_len: int
    """Longest sequence the model (its rope, its config) supports."""
    groups: tuple[KVGroup, ...]
    block_size: int
    block_bytes: int
    """Bytes of one block over all layers of its group: 2 * layers * block_size * kv_heads * head_dim * itemsize."""
    num_blocks: int
    """Block 0 is the null block and is never handed out."""
    eos_ids: tuple[int, ...]
    isa: str = ""
    threads: int = 1
    weights_bytes: int = 0
    load_seconds: dict[str, float] = {}
    """Start-up time by phase."""
