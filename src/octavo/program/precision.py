"""Which matrices --quantization int4 gives eight bits (decisions/0012): where rounding costs most."""

from __future__ import annotations

from octavo.program.ir import Program, weights_of


def eight_bits(program: Program) -> frozenset[str]:
    """Names of weights: embeddings, what its layer calls careful (attention, down_proj, an untied head), and all of the
    first and last eighth of the layers and of every second between."""
    layers = [s for s in program.segments if s.name.startswith("layers.")]
    names = {weight.name for weight in program.weights.values() if weight.lookup or weight.careful}
    for i, segment in enumerate(layers):
        if _costly(i, len(layers)):
            names.update(name for op in program.ops[segment.first : segment.end] for name in weights_of(op))
    return frozenset(names)


def _costly(layer: int, count: int) -> bool:
    edge = count // 8
    return layer < edge or layer >= 7 * count // 8 or (layer - edge) % 2 == 1
