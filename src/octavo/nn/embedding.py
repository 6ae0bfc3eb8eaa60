"""Token embedding and output head; tied ones are one weight, held once."""

from __future__ import annotations

from octavo.nn.build import Build
from octavo.program.ir import View


class Embedding:
    """Rows of `{prefix}.weight` [vocab, width] by token id, times `scale`."""

    def __init__(self, b: Build, vocab: int, width: int, *, scale: float = 1.0) -> None:
        self._builder = b.builder
        self._scale = scale
        self.weight = b.builder.linear_weight({b.name("weight"): vocab}, width)

    def __call__(self) -> View:
        """The residual stream [T, width], f32."""
        return self._builder.scale(self._builder.embed(self.weight, name="hidden"), self._scale)


class Head:
    """Logits from the wanted rows, times `scale`, then softcap * tanh(logit / softcap) where there is a softcap.

    `tied` is the embedding whose weight it shares, or None for its own.
    """

    def __init__(
        self, b: Build, vocab: int, width: int, *, tied: Embedding | None, scale: float = 1.0, softcap: float = 0.0
    ) -> None:
        self._builder = b.builder
        self._scale, self._softcap = scale, softcap
        if tied:
            b.builder.ignore(b.name("weight"))  # some files hold the copy all the same
        self._weight = tied.weight if tied else b.builder.linear_weight({b.name("weight"): vocab}, width, careful=True)

    def __call__(self, x: View) -> View:
        """[R, width] to [R, vocab]."""
        return self._builder.scale(self._builder.head(x, self._weight), self._scale, softcap=self._softcap)
