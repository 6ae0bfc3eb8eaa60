"""Token embedding and output head; tied ones are one weight, held once."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.program.ir import View


class Embedding:
    """Rows of `{prefix}.weight` [vocab, width] by token id."""

    def __init__(self, b: Build, vocab: int, width: int) -> None:
        self._builder = b.builder
        self.weight = b.builder.linear_weight({b.name("weight"): vocab}, width)

    def __call__(self) -> View:
        """The residual stream [T, width], f32."""
        return self._builder.embed(self.weight, name="hidden")


class Head:
    """Logits from the wanted rows. `tied` is the embedding whose weight it shares, or None for its own."""

    def __init__(self, b: Build, vocab: int, width: int, *, tied: Embedding | None) -> None:
        self._builder = b.builder
        if tied:
            b.builder.ignore(b.name("weight"))  # some files hold the copy all the same
        self._weight = tied.weight if tied else b.builder.linear_weight({b.name("weight"): vocab}, width)

    def __call__(self, x: View) -> View:
        """[R, width] to [R, vocab]."""
        return self._builder.head(x, self._weight)
