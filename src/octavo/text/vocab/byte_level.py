"""Byte-level BPE vocabularies of GGUF files (`tokenizer.ggml.model` = "gpt2"): SmolLM, Qwen, Llama 3, many more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError
from octavo.text.vocab.pretokenizers import find, install
from octavo.text.vocab.vocabulary import Metadata, add_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


def build(meta: Metadata) -> Backend:
    """Raises ModelError, also for a pre-tokenizer that we do not know."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    rule = find(pre_tokenizer(meta))
    tokens, types = meta.vocabulary()
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in meta.strings("merges")]
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    try:
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=rule.ignore_merges))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.ggml.merges: {error}") from None
    install(rule, backend)
    add_tokens(backend, tokens, types)
    return backend


def pre_tokenizer(meta: Metadata) -> str:
    """Its name. Files from before there were names mean "default"."""
    return str(meta.get("pre", "default"))
