"""Build: the one constructor argument of every layer."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from octavo.program.builder import Builder


class Build(Struct, frozen=True):
    """Where a layer is being built: the builder, and the prefix of its checkpoint names.

    What changes how *every* layer is built (a tensor-parallel group, LoRA sites) is a field here, not a branch
    in a model.
    """

    builder: Builder
    prefix: str = ""

    def sub(self, name: str | int) -> Build:
        """The place of a child: `b.sub("self_attn")`, `b.sub("layers").sub(3)`."""
        return replace(self, prefix=self.name(str(name)))

    def name(self, leaf: str) -> str:
        """A checkpoint name here."""
        return f"{self.prefix}.{leaf}" if self.prefix else leaf
