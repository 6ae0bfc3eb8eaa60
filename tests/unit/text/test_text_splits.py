"""Pre-tokenizers cut texts where the patterns of OpenAI and llama.cpp do (made by tests/oracle/split_reference.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from octavo.text.vocab.pretokenizers import find, install
from tests.texts import mixed_texts

SPLITS = json.loads((Path(__file__).parents[2] / "data" / "splits.json").read_text())
KINDS = [name for name in SPLITS if name != "random"]


@pytest.mark.parametrize("kind", KINDS)
def test_splits(kind: str) -> None:
    backend = Tokenizer(models.BPE())
    install(find(kind), backend)
    texts = [*mixed_texts(), *SPLITS["random"]]
    for text, want in zip(texts, SPLITS[kind], strict=True):
        pieces = backend.pre_tokenizer.pre_tokenize_str(text)
        assert [end - start for _, (start, end) in pieces] == want, repr(text)
