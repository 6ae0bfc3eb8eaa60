"""What every decoder has around its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.nn.embedding import Embedding, Head
from octavo.nn.norm import RMSNorm
from octavo.program.builder import Builder
from octavo.program.ir import View


def emit_decoder(
    b: Builder, *, embed: Embedding, layers: Sequence[Callable[[View], View]], norm: RMSNorm, head: Head
) -> View:
    """Emit the segments embed, layers.0 … and head (norm and logits of the wanted rows only); the logits."""
    with b.segment("embed"):
        h = embed()
    for i, layer in enumerate(layers):
        with b.segment(f"layers.{i}"):
            h = layer(h)
    with b.segment("head"):
        return head(norm(b.gather(h, name="rows")))
