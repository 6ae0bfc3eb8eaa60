"""How text is cut before BPE, by the name a GGUF file gives it in `tokenizer.ggml.pre`.

GGUF keeps only a name; the rule behind it is the original tokenizer's. A wrong rule does not fail, it gives slightly
different ids (and a worse model), so an unknown name is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

GPT2 = "gpt2"
"""Stands for the ByteLevel pre-tokenizer's own regular expression."""

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = WORDS + r"\p{N}" + OTHERS
LLAMA3 = WORDS + r"\p{N}{1,3}" + OTHERS


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One rule: what happens to text before BPE sees it."""

    regex: str
    digits: bool = False
    """Each digit alone, before the regular expression."""
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges say."""
    add_bos: bool = False
    """What a file that does not say means."""


_SMOLLM = PreTokenizer(GPT2, digits=True)
_QWEN2 = PreTokenizer(QWEN2, nfc=True)
_LLAMA3 = PreTokenizer(LLAMA3, ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "default": PreTokenizer(GPT2),
    "gpt-2": PreTokenizer(GPT2),
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def find(name: str) -> PreTokenizer:
    """The rule of that name. Raises ModelError for one we do not know."""
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        allowed = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"tokenizer.ggml.pre: got {name!r}, allowed: {allowed} (others are not supported yet)")
    return rule


def install(rule: PreTokenizer, backend: Backend) -> None:
    """Sets the normalizer, pre-tokenizer and decoder of `backend`."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    steps: list[Any] = []
    if rule.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.regex != GPT2:
        steps.append(pre_tokenizers.Split(Regex(rule.regex), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.regex == GPT2))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
