"""Tokenizers for tests: SmolLM2's, and small ones made here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab.alphabet import byte_of_char
from tests.models_at_hand import smollm2

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_metadata(**more: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: three control tokens, a user-defined one, 256 bytes, some merges."""
    alphabet = sorted(byte_of_char(), key=byte_of_char().__getitem__)
    merges = ["a b", "Ġ a", "h e", "he l", "hel l", "hell o", "ð Ł"]
    tokens = [*SPECIALS, "<tool_call>", *alphabet, *(merge.replace(" ", "") for merge in merges)]
    kinds = [3] * 3 + [4] + [1] * (len(tokens) - 4)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def metaspace_json() -> bytes:
    """A tokenizer.json in the manner of Llama 2: ▁ for spaces, bytes as <0x0A>, a BOS from the post-processor."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = 3 + byte
    for text in ("▁", "a", "b", "▁a", "é", "ab"):
        vocab[text] = len(vocab)
    special = [
        {
            "id": i,
            "content": c,
            "special": True,
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        for i, c in enumerate(("<unk>", "<s>", "</s>"))
    ]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": special,
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": vocab,
                "merges": [["▁", "a"], ["a", "b"]],
            },
        }
    ).encode()


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata())


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    return Tokenizer.from_json(metaspace_json(), {"bos_token": "<s>", "eos_token": {"content": "</s>"}}, {})


@pytest.fixture(scope="session")
def smol_checkpoint() -> Any:
    from octavo.weights.checkpoint import open_checkpoint

    return open_checkpoint(smollm2())


@pytest.fixture(scope="session")
def smol(smol_checkpoint: Any) -> Tokenizer:
    return Tokenizer.from_spec(smol_checkpoint.tokenizer_spec)
