"""SentencePiece vocabularies, BPE and unigram: Llama 2, Mistral, Gemma; T5.

SentencePiece BPE joins the two neighbours whose union scores highest; the `tokenizers` package joins by rank in a list
of pairs. So the list is made, in order of score. Every way to cut a piece into two would do; the one that joins lead to
is enough, and halves the time to read it back. Unigram is the package's own model.

Spaces are ▁ (U+2581), one is put in front of the text where the file says so, runs of spaces become one where it says
so, and unknown characters fall back to bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError
from octavo.text.vocab.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, Metadata, add_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


PHI3 = frozenset(("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"))
"""By these a SentencePiece vocabulary is known as Phi-3's, whose control tokens take the white space behind them, so
that the line ends of its template are no tokens. GGUF does not keep that. Source: its tokenizer.json."""
KEEPING = frozenset(("<s>", "<unk>", "<|endoftext|>"))
"""The ones that do not."""


def merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Pairs in the order in which they join: for each piece the one it is joined from."""
    pieces = [i for i, kind in enumerate(types) if kind == NORMAL]
    pieces.sort(key=lambda i: -scores[i])
    ranks = {tokens[i]: rank for rank, i in enumerate(pieces)}
    halves = (_halves(token, ranks) for token in ranks if len(token) > 1)
    return [pair for pair in halves if pair is not None]


def _halves(token: str, ranks: Mapping[str, int]) -> tuple[str, str] | None:
    """The two parts that a piece is before the last join; None where joins do not lead to it. Whatever stands around
    it in a text, these are the parts: a join across its border would mean that it is never made."""
    if len(token) == 2:
        return (token[0], token[1]) if token[0] in ranks and token[1] in ranks else None
    rank_of, never = ranks.get, len(ranks)
    parts = list(token)
    joins = [rank_of(left + right, never) for left, right in pairwise(parts)]
    while len(parts) > 2:
        best = min(joins)
        if best == never:
            return None
        at = joins.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del joins[at]
        if at:
            joins[at - 1] = rank_of(parts[at - 1] + parts[at], never)
        if at < len(joins):
            joins[at] = rank_of(parts[at] + parts[at + 1], never)
    return (parts[0], parts[1]) if parts[0] in ranks and parts[1] in ranks else None


def build_bpe(meta: Metadata) -> Backend:
    """The tokenizer of `tokenizer.ggml.model` = "llama". Raises ModelError."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    tokens, types = meta.vocabulary()
    pairs: list[Any] = merges(tokens, meta.scores(len(tokens)), types)
    unknown = unknown_id(meta)
    name = tokens[unknown] if unknown is not None and unknown < len(tokens) else None
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    try:
        model = models.BPE(vocab=vocab, merges=pairs, unk_token=name, fuse_unk=True, byte_fallback=True)
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.ggml.tokens: {error}") from None
    backend = Backend(model)
    _install(meta, backend)
    phi3 = {tokens[i] for i, kind in enumerate(types) if kind == CONTROL} >= PHI3
    add_tokens(backend, tokens, types, rstrip=lambda text: phi3 and text not in KEEPING)
    return backend


def build_unigram(meta: Metadata) -> Backend:
    """The tokenizer of `tokenizer.ggml.model` = "t5". Raises ModelError."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    tokens, types = meta.vocabulary()
    scores = meta.scores(len(tokens))
    unknown = unknown_id(meta)
    if unknown is None or unknown >= len(tokens):
        raise ModelError(f"tokenizer.ggml.unknown_token_id: got {unknown}, allowed: 0 to {len(tokens) - 1}")
    # What is no text must not be found in text. Scores decide, and these are worse than any path of real pieces.
    worst = min((score for score, kind in zip(scores, types, strict=True) if kind == NORMAL), default=0.0) - 1000.0
    vocab = [
        (token, worst if kind in (UNKNOWN, CONTROL, UNUSED, BYTE) else score)
        for token, score, kind in zip(tokens, scores, types, strict=True)
    ]
    try:
        model = models.Unigram(vocab, unk_id=unknown, byte_fallback=BYTE in types)
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.ggml.tokens: {error}") from None
    backend = Backend(model)
    _install(meta, backend)
    add_tokens(backend, tokens, types)
    return backend


def unknown_id(meta: Metadata) -> int | None:
    """The id of what has no piece: the file's own, or the first token of that type."""
    named = meta.id("unknown")
    if named is not None:
        return named
    return next((i for i, kind in enumerate(meta.types()) if kind == UNKNOWN), None)


def _install(meta: Metadata, backend: Backend) -> None:
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    charsmap = meta.bytes_of("precompiled_charsmap")
    if charsmap:
        try:
            steps.append(normalizers.Precompiled(charsmap))
        except Exception as error:  # the package raises bare Exception
            raise ModelError(f"tokenizer.ggml.precompiled_charsmap: {error}") from None
    if meta.flag("remove_extra_whitespaces", False):
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if meta.flag("add_space_prefix", True):
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
