"""tekken.json, Mistral's own files: byte strings in order of rank -> the keys of a GGUF file, with merges.

A vocabulary of ranks joins the two neighbours whose union has the lowest rank. Merges say the same for one token: the
pair that a token's own bytes are before the last join.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

import msgspec

from octavo.errors import FileFormatError, ModelError
from octavo.text.vocab.alphabet import byte_of_char
from octavo.text.vocab.pretokenizers import TEKKEN
from octavo.text.vocab.vocabulary import CONTROL, NORMAL

# Files from before special tokens were listed.
# fmt: off
SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)
# fmt: on


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Entry(msgspec.Struct):
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]
    special_tokens: list[_Special] | None = None


def read(data: bytes) -> dict[str, object]:
    """`tokenizer.ggml.*` keys. Raises FileFormatError (damaged) and ModelError (another pattern)."""
    try:
        file = msgspec.json.decode(data, type=_File)
        config = file.config
        if not 256 <= config.default_vocab_size - config.default_num_special_tokens <= len(file.vocab):
            raise FileFormatError(f"tekken.json: vocab: got {len(file.vocab)} entries for {config}")
        count = config.default_vocab_size - config.default_num_special_tokens
        words = [base64.b64decode(entry.token_bytes, validate=True) for entry in file.vocab[:count]]
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
        raise FileFormatError(f"tekken.json: {error}") from None
    if config.pattern != TEKKEN:
        raise ModelError("tekken.json: config.pattern: got another regular expression, allowed: Tekken's")
    special = [f"<SPECIAL_{i}>" for i in range(config.default_num_special_tokens)]
    listed = file.special_tokens or [_Special(i, text) for i, text in enumerate(SPECIAL)]
    for token in listed:
        if 0 <= token.rank < len(special):
            special[token.rank] = token.token_str
    spell = {byte: char for char, byte in byte_of_char().items()}
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": "tekken",
        "tokens": [*special, *("".join(map(spell.__getitem__, word)) for word in words)],
        "token_type": [CONTROL] * len(special) + [NORMAL] * len(words),
        "merges": Merges(words),
    }
    for name, text in (("bos", "<s>"), ("eos", "</s>"), ("unknown", "<unk>")):
        if text in special:
            keys[f"{name}_token_id"] = special.index(text)
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


class Merges(Sequence[str]):
    """Merges of a vocabulary of ranks, made when they are first asked for: that takes seconds, and a kept tokenizer
    does not need them."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words

    @cached_property
    def _made(self) -> list[str]:
        spell = {byte: char for char, byte in byte_of_char().items()}
        ranks = {word: i for i, word in enumerate(self._words)}
        pairs = (_halves(word, ranks) for word in self._words if len(word) > 1)
        return [" ".join("".join(map(spell.__getitem__, half)) for half in pair) for pair in pairs if pair is not None]

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._made[index]


def _halves(word: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two parts that `word` is before the last join; None where joins do not lead to it."""
    limit = ranks[word]
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 2:
        best, at = min((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(pairwise(parts)))
        if best >= limit:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
