"""SentencePiece BPE vocabularies of GGUF files (`tokenizer.ggml.model` = "llama"): Llama 2, Mistral, TinyLlama.

SentencePiece joins the two neighbours whose union scores highest; the `tokenizers` package joins by rank in a list of
pairs. So the list is made: every way to cut a piece into two pieces, in order of the piece's score. Spaces are ▁
(U+2581), one is put in front of the text where the file says so, and unknown characters fall back to bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NORMAL = 1


def merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Pairs in the order in which they join."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    order = sorted(ids.values(), key=lambda i: -scores[i])
    pairs: list[tuple[str, str]] = []
    for i in order:
        token = tokens[i]
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        found = [(left, right) for left, right in cuts if left in ids and right in ids]
        if len(found) > 1:
            found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        pairs.extend(found)
    return pairs


def build(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, unknown: str | None, prefix: bool
) -> Backend:
    """The tokenizer, without added tokens. `prefix`: a space goes in front of the text. Raises ModelError."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers

    vocab = {token: i for i, token in enumerate(tokens)}
    pairs: list[Any] = merges(tokens, scores, types)
    try:
        model = models.BPE(vocab=vocab, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.ggml.tokens: {error}") from None
    built = Backend(model)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    built.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    return built
