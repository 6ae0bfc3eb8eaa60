"""Text <-> token ids, on the `tokenizers` package.

Encoding is the package's, on a vocabulary that `vocab/` builds. Decoding is ours, by bytes: a token *is* a byte string,
a text is their concatenation decoded as UTF-8, and so a stream of tokens decodes in O(1) a token (detokenize.py) and
always adds up to the whole.

A *control* token is one the tokenizer marks as special, or an added token that looks like a marker (`<|…|>`). Text
becomes control tokens only with parse_special=True: typed by a user, `<|im_end|>` is ten plain characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequest
from octavo.text.vocab import gguf, sources, tokenizer_json
from octavo.text.vocab.alphabet import byte_of_char
from octavo.text.vocab.cache import TokenizerCache
from octavo.text.vocab.panics import no_panics
from octavo.text.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

MARKER = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LONG_TEXT = 8_000
AFTER = "\ufdef"
"""Stands for a control token before a text; a noncharacter, in no vocabulary."""


class Tokenizer:
    """One model's tokenizer. Immutable and safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._backend = backend = vocabulary.backend
        backend.no_truncation()
        backend.no_padding()
        self._alphabet, self._byte_of_char = vocabulary.alphabet, byte_of_char()
        self.strip_start = vocabulary.strip_start
        added = backend.get_added_tokens_decoder()
        self.vocab_size: int = max(backend.get_vocab_size(), *(i + 1 for i in added), 0)
        """One above the highest token id. A model's embedding may have more rows (padding)."""
        self.bos_id, self.add_bos = vocabulary.bos_id, vocabulary.add_bos
        self.eos_id = vocabulary.eos_id
        """The one that templates write as eos_token."""
        self.eos_ids = vocabulary.eos_ids
        """Every id that ends a turn."""
        ends = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        self.named: Mapping[str, str] = {
            **vocabulary.named,
            **{name: "" if i is None else backend.id_to_token(i) or "" for name, i in ends.items()},
        }
        """Special tokens as templates name them: bos_token, eos_token, pad_token, …"""
        self._added = {i: token.content for i, token in added.items()}
        self.control: Mapping[int, AddedToken] = {i: token for i, token in added.items() if _is_control(token)}
        """Id -> added token (content, lstrip, rstrip) of every control token."""
        self.special_ids = frozenset(self.control) | frozenset(self.eos_ids)
        """Left out of decoded text by default."""
        self._plain = _without_control(backend, added)
        spaced = self._alphabet == "metaspace"
        self._continued = _without_control(backend, added, mark=AFTER) if spaced else None
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._never = frozenset(self.control) - {vocabulary.unknown_id}

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], *, cache: TokenizerCache | None = None) -> Tokenizer:
        """From a checkpoint's `tokenizer_spec`. `cache`: where vocabularies that take long to build are kept. Raises
        ModelError."""
        with no_panics():
            return cls(sources.load(spec, cache=cache))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], *, eos_ids: Sequence[int] | None = None) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file. Raises ModelError (other vocabularies or pre-tokenizers)."""
        with no_panics():
            return cls(gguf.load(metadata, eos_ids=eos_ids))

    @classmethod
    def from_json(
        cls,
        data: bytes,
        tokenizer_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """From the bytes of a tokenizer.json, with what tokenizer_config.json and the checkpoint's config say about BOS
        and EOS. Raises ModelError."""
        with no_panics():
            return cls(tokenizer_json.load(data, tokenizer_config or {}, config or {}))

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False, after_control: bool = False
    ) -> list[int]:
        """Token ids of `text`. `add_bos`: None does what the model's tokenizer does; a BOS is never doubled.
        `after_control`: the (plain) text goes on after a control token; some tokenizers put a space before the first
        text only. Raises InvalidRequest for text that is not Unicode (lone surrogates) or has no tokens."""
        backend, marker = (self._backend if parse_special else self._plain), ""
        if after_control and self._continued is not None and AFTER not in text:
            backend, marker = self._continued, AFTER
        with no_panics():
            ids = _ids(backend, marker + text)
        if marker:
            del ids[0]
        if not parse_special and not self._never.isdisjoint(ids):
            # A unigram model may find `</s>` in text like any other piece.
            ids = [i for found in ids for i in (self._spelled(found) if found in self._never else (found,))]
        bos = self.bos_id
        if (self.add_bos if add_bos is None else add_bos) and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are empty."""
        skip = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join([self.token_bytes(i) for i in ids if i not in skip])
        text = data.decode("utf-8", "replace")
        return text[1:] if self.strip_start and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._spell(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """A token alone, for showing (half a character shows as U+FFFD)."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of a token written exactly so in the vocabulary (`<|im_end|>`), or None."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def _spelled(self, token_id: int) -> list[int]:
        """A control token's text, one token a character (or byte)."""
        ids: list[int] = []
        for char in self._added[token_id]:
            found = self._backend.token_to_id("▁" if char == " " else char)
            spelled = [self._backend.token_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
            unknown = self._plain.encode(char, add_special_tokens=False).ids[-1:]
            parts = [found] if found is not None else unknown if None in spelled else spelled
            ids += [i for i in parts if i is not None and i not in self._never]
        return ids

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            added = self._added[token_id]
            return (added.replace("▁", " ") if self._alphabet == "metaspace" else added).encode()
        found = self._backend.id_to_token(token_id)
        if found is None:
            return b""
        text = str(found)
        if self._alphabet == "bytes":
            table = self._byte_of_char
            try:
                return bytes([table[char] for char in text])
            except KeyError:
                return text.encode()
        byte = BYTE.fullmatch(text)
        if byte:
            return bytes([int(byte[1], 16)])
        return text.replace("▁", " ").encode()


def _ids(backend: Backend, text: str) -> list[int]:
    try:
        if len(text) <= LONG_TEXT:
            return list(backend.encode(text, add_special_tokens=False).ids)
        # The batch call releases the GIL where the plain one holds it: 180,000 tokens stall the other threads for 46 ms
        # instead of 2.4 s. It starts worker threads, so short texts keep to the plain one.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)
    except (UnicodeEncodeError, TypeError):
        raise InvalidRequest("text: got a string with lone surrogates, allowed: valid Unicode") from None
    except Exception as error:  # the package raises bare Exception: no token for a character, and none for unknown ones
        raise InvalidRequest(f"text: the model's tokenizer cannot encode it: {error}") from None


def _is_control(token: AddedToken) -> bool:
    return bool(token.special) or MARKER.fullmatch(token.content) is not None


def _without_control(backend: Backend, added: Mapping[int, AddedToken], *, mark: str | None = None) -> Backend:
    """The same tokenizer, deaf to control tokens. Model, normalizer and pre-tokenizer are shared, not copied. `mark`:
    one more token, above all others."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    plain = Backend(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    # All of them, in order of id, so that each gets its id again; in few calls, since each builds the matchers anew.
    for control, run in groupby((token for _, token in sorted(added.items())), key=_is_control):
        copies: list[AddedToken | str] = [
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=control,
            )
            for token in run
        ]
        (plain.add_special_tokens if control else plain.add_tokens)(copies)
    if mark is not None:
        plain.add_tokens([AddedToken(mark, normalized=False)])
    plain.encode_special_tokens = True
    return plain
