"""Whether a directory has an output head of its own beside the embedding that config.json says it is.

`tie_word_embeddings` is true by default in some families, and fine-tunes that trained a head of their own keep it.
Source: transformers 5, `tie_weights`: two stored tensors that differ are not tied.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.weights.tensors import Tensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TILE = 1 << 20
"""Bytes compared at a time: copies of so many are quick to compare, mappings are not."""


def own_head(tensors: Mapping[str, Tensor]) -> bool:
    """Whether both are stored and differ: in type, in shape or in a byte. Reads both up to the first difference."""
    embedding, head = tensors.get(EMBEDDING), tensors.get(HEAD)
    if embedding is None or head is None:
        return False
    if (head.source, head.shape) != (embedding.source, embedding.shape):
        return True
    one, other = memoryview(head.load()), memoryview(embedding.load())
    return any(bytes(one[at : at + TILE]) != bytes(other[at : at + TILE]) for at in range(0, len(one), TILE))
