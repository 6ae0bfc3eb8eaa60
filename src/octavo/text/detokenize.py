"""A stream of token ids -> a stream of text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class Spelling(Protocol):
    """`Tokenizer`, as far as a text is put together from ids."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Left out of texts by default."""
        ...

    @property
    def strip_start(self) -> bool:
        """A text loses the space it begins with."""
        ...

    def token_bytes(self, token_id: int, /) -> bytes: ...


class Detokenizer:
    """Decodes one sequence as it grows. O(1) a token: at most three bytes of an unfinished character are held back.

    The concatenation of everything returned equals `tokenizer.decode` of all ids, and U+FFFD appears only where the
    model produced bytes that are not UTF-8. A text that `continues` another keeps the space it begins with, which at
    the start of a text some tokenizers put there themselves: prompt and answer together are the decoded whole.
    """

    __slots__ = ("_decoder", "_skip", "_strip", "_tokenizer")

    def __init__(self, tokenizer: Spelling, *, skip_special_tokens: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._strip = tokenizer.strip_start and not continues

    @classmethod
    def after(cls, prompt: Iterable[int], tokenizer: Spelling, *, skip_special_tokens: bool) -> Detokenizer:
        """Of an answer to these ids."""
        continues = any(i not in tokenizer.special_ids for i in prompt)
        return cls(tokenizer, skip_special_tokens=skip_special_tokens, continues=continues)

    def add(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        spell, skip = self._tokenizer.token_bytes, self._skip
        return self._start(self._decoder.decode(b"".join([spell(i) for i in ids if i not in skip])))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._start(self._decoder.decode(b"", True))

    def _start(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
