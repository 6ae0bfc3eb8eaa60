"""Text <-> token ids, on the `tokenizers` package, built by our own code from GGUF metadata or a tokenizer.json.

Encoding is the package's. Decoding is ours, by bytes: a token *is* a byte string, a text is their concatenation decoded
as UTF-8, and so a stream of tokens decodes in O(1) a token (detokenize.py) and always adds up to the whole.

A *control* token is one the tokenizer marks as special, or an added token that looks like a marker (`<|…|>`). Text
becomes control tokens only with parse_special=True: typed by a user, `<|im_end|>` is ten plain characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.errors import InvalidRequest, ModelError
from octavo.text.byte_level import byte_of_char
from octavo.text.pretokenizers import PreTokenizer, find, install

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

MARKER = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LONG_TEXT = 8_000
AFTER = "\ufdef"
"""Stands for a control token before a text; a noncharacter, in no vocabulary."""
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Token types of tokenizer.ggml.token_type."""


class Tokenizer:
    """One model's tokenizer. Immutable and safe to share between threads."""

    def __init__(
        self,
        backend: Backend,
        *,
        alphabet: str,
        strip_start: bool = False,
        bos_id: int | None,
        eos_id: int | None,
        eos_ids: Sequence[int],
        add_bos: bool,
    ) -> None:
        """`alphabet`: how token strings spell bytes: "bytes" (byte-level BPE) or "metaspace" (▁ a space, <0x0A> byte).
        `strip_start`: a decoded text loses one leading space."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._alphabet, self._byte_of_char = alphabet, byte_of_char()
        self.strip_start = strip_start
        self.vocab_size: int = max(backend.get_vocab_size(), *(i + 1 for i in backend.get_added_tokens_decoder()), 0)
        """One above the highest token id. A model's embedding may have more rows (padding)."""
        self.bos_id, self.add_bos = bos_id, add_bos
        self.eos_id = eos_id
        """The one that templates write as eos_token."""
        self.eos_ids = tuple(eos_ids)
        """Every id that ends a turn."""
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        self.control: Mapping[int, AddedToken] = {
            i: token for i, token in backend.get_added_tokens_decoder().items() if _is_control(token)
        }
        """Id -> added token (content, lstrip, rstrip) of every control token."""
        self.special_ids = frozenset(self.control) | frozenset(eos_ids)
        """Left out of decoded text by default."""
        self._plain = _without_control(backend)
        self._continued = _without_control(backend, mark=AFTER) if alphabet == "metaspace" else None
        self._bytes: list[bytes | None] = [None] * self.vocab_size

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Tokenizer:
        """From a checkpoint's `tokenizer_spec`. Raises ModelError."""
        if spec["format"] == "gguf":
            return cls.from_gguf(spec["metadata"], eos_ids=spec.get("eos_ids"))
        if spec["format"] != "json":
            raise ModelError(spec["reason"])
        return cls.from_json(spec["tokenizer_json"], spec.get("tokenizer_config"), spec.get("config"))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], *, eos_ids: Sequence[int] | None = None) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file. Raises ModelError (other vocabularies or pre-tokenizers)."""
        model = metadata.get("tokenizer.ggml.model")
        if model == "gpt2":
            rule = find(str(metadata.get("tokenizer.ggml.pre", "default")))
            backend, add_bos, strip_start = _bpe(metadata, rule), rule.add_bos, False
        elif model == "llama":
            strip_start = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
            backend, add_bos = _sentencepiece(metadata, prefix=strip_start), True
        else:
            allowed = "'gpt2' (byte-level BPE) or 'llama' (SentencePiece BPE); others are not supported yet"
            raise ModelError(f"tokenizer.ggml.model: got {model!r}, allowed: {allowed}")
        if eos_ids is None:
            eos = (_token_id(metadata.get(f"tokenizer.ggml.{key}_token_id")) for key in ("eos", "eot"))
            eos_ids = sorted({i for i in eos if i is not None})
        bos_id, eos_id = (_token_id(metadata.get(f"tokenizer.ggml.{key}_token_id")) for key in ("bos", "eos"))
        return cls(
            backend,
            alphabet="bytes" if model == "gpt2" else "metaspace",
            strip_start=strip_start,
            bos_id=bos_id,
            eos_id=eos_id,
            eos_ids=eos_ids,
            add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and bos_id is not None,
        )

    @classmethod
    def from_json(
        cls,
        tokenizer_json: bytes,
        tokenizer_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """From the bytes of a tokenizer.json, with what tokenizer_config.json and the checkpoint's config say about BOS
        and EOS. Raises ModelError."""
        from tokenizers import Tokenizer as Backend

        try:
            head = msgspec.json.decode(tokenizer_json, type=_Head)
            backend = Backend.from_str(str(tokenizer_json, "utf-8"))
        except Exception as error:  # the package raises bare Exception
            raise ModelError(f"tokenizer.json: {error}") from None
        alphabet, strip_start = _decoding(head.decoder)
        settings, numbers = tokenizer_config or {}, config or {}
        bos_text = _content(settings.get("bos_token"))
        bos_id = backend.token_to_id(bos_text) if bos_text else _token_id(numbers.get("bos_token_id"))
        leading = backend.encode("", add_special_tokens=True).ids[:1]
        add_bos = settings.get("add_bos_token")
        if not isinstance(add_bos, bool):
            add_bos = bos_id is not None and leading == [bos_id]
        eos = numbers.get("eos_token_id")
        eos_ids = [eos] if isinstance(eos, int) else list(eos or ())
        eos_text = _content(settings.get("eos_token"))
        named = backend.token_to_id(eos_text) if eos_text else None
        if named is not None and named not in eos_ids:
            eos_ids.append(named)
        return cls(
            backend,
            alphabet=alphabet,
            strip_start=strip_start,
            bos_id=bos_id,
            eos_id=named if named is not None else next(iter(eos_ids), None),
            eos_ids=eos_ids,
            add_bos=add_bos and bos_id is not None,
        )

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False, after_control: bool = False
    ) -> list[int]:
        """Token ids of `text`. `add_bos`: None does what the model's tokenizer does; a BOS is never doubled.
        `after_control`: the (plain) text goes on after a control token; some tokenizers put a space before the first
        text only. Raises InvalidRequest for text that is not Unicode (lone surrogates)."""
        backend, marker = (self._backend if parse_special else self._plain), ""
        if after_control and self._continued is not None and AFTER not in text:
            backend, marker = self._continued, AFTER
        try:
            if len(text) <= LONG_TEXT:
                ids: list[int] = backend.encode(marker + text, add_special_tokens=False).ids
            else:
                # The batch call releases the GIL where the plain one holds it: 180,000 tokens stall the other threads
                # for 46 ms instead of 2.4 s. It starts worker threads, so short texts keep to the plain one.
                (encoding,) = backend.encode_batch_fast([marker + text], add_special_tokens=False)
                ids = encoding.ids
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("text: got a string with lone surrogates, allowed: valid Unicode") from None
        if marker:
            del ids[0]
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

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        text = self._backend.id_to_token(token_id)
        if text is None:
            return b""
        if self._alphabet == "bytes":
            table = self._byte_of_char
            try:
                return bytes([table[char] for char in text])
            except KeyError:
                return str(text).encode()
        byte = BYTE.fullmatch(text)
        if byte:
            return bytes([int(byte[1], 16)])
        return str(text).replace("▁", " ").encode()


class _Head(msgspec.Struct):
    """The part of a tokenizer.json that decides how tokens spell bytes."""

    decoder: dict[str, Any] | None = None


def _decoding(decoder: dict[str, Any] | None) -> tuple[str, bool]:
    """(alphabet, strip_start) of a tokenizer.json's decoder."""
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [step.get("type") for step in steps if isinstance(step, dict)]
    if kinds == ["ByteLevel"]:
        return "bytes", False
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and {"Replace", "Metaspace"} & set(
        kinds
    ):
        strips = any(
            (s.get("type") == "Strip" and s.get("start") == 1)
            or (s.get("type") == "Metaspace" and s.get("prepend_scheme", "always") != "never")
            for s in steps
        )
        return "metaspace", strips
    got = ", ".join(map(str, kinds)) or "none"
    raise ModelError(f"tokenizer.json: decoder: got {got}, allowed: ByteLevel, or Metaspace with byte fallback")


def _bpe(metadata: Mapping[str, object], rule: PreTokenizer) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    tokens, types = _vocabulary(metadata)
    merges = _strings(metadata, "tokenizer.ggml.merges")
    try:
        pairs: list[Any] = [tuple(merge.split(" ")) for merge in merges]
        vocab = dict(zip(tokens, range(len(tokens)), strict=True))
        backend = Backend(models.BPE(vocab=vocab, merges=pairs, ignore_merges=rule.ignore_merges))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.ggml.merges: {error}") from None
    install(rule, backend)
    _add_tokens(backend, tokens, types)
    return backend


def _sentencepiece(metadata: Mapping[str, object], *, prefix: bool) -> Backend:
    from octavo.text import sentencepiece

    tokens, types = _vocabulary(metadata)
    value = metadata.get("tokenizer.ggml.scores")
    scores: list[Any] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(scores) != len(tokens) or not all(isinstance(score, int | float) for score in scores):
        raise ModelError(f"tokenizer.ggml.scores: got {len(scores)} entries, allowed: {len(tokens)} numbers")
    unknown = _token_id(metadata.get("tokenizer.ggml.unknown_token_id", 0))
    name = tokens[unknown] if unknown is not None and unknown < len(tokens) else None
    backend = sentencepiece.build(tokens, scores, types or [1] * len(tokens), unknown=name, prefix=prefix)
    _add_tokens(backend, tokens, types)
    return backend


def _vocabulary(metadata: Mapping[str, object]) -> tuple[list[str], list[Any]]:
    """(tokens, their types or nothing), each token once."""
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    types = list(kinds) if isinstance(kinds, Sequence) else []
    if types and len(types) != len(tokens):
        raise ModelError(f"tokenizer.ggml.token_type: got {len(types)} entries, allowed: {len(tokens)}, one a token")
    doubled = len(tokens) - len(set(tokens))
    if doubled:
        raise ModelError(f"tokenizer.ggml.tokens: got {doubled} doubled entries, allowed: each token once")
    return tokens, types


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[object]) -> None:
    """Control and user-defined tokens are matched before anything else. They are in the vocabulary: ids stay."""
    from tokenizers import AddedToken

    kinds = (UNKNOWN, CONTROL, USER_DEFINED)
    added = [(text, kind) for text, kind in zip(tokens, types, strict=False) if kind in kinds]
    special = [AddedToken(text, special=True, normalized=False) for text, kind in added if kind != USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(text, normalized=False) for text, kind in added if kind == USER_DEFINED])


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if not items or not isinstance(items[0], str):
        raise ModelError(f"{key}: got {type(value).__name__}, allowed: a list of strings")
    return items


def _token_id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _content(value: object) -> str | None:
    """A token in tokenizer_config.json: a string, or a dict with its content."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _is_control(token: AddedToken) -> bool:
    return bool(token.special) or MARKER.fullmatch(token.content) is not None


def _without_control(backend: Backend, *, mark: str | None = None) -> Backend:
    """The same tokenizer, deaf to control tokens. Model, normalizer and pre-tokenizer are shared, not copied. `mark`:
    one more token, above all others."""
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    plain = Backend(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    # All of them, in order of id, so that each gets its id again.
    for _, token in sorted(backend.get_added_tokens_decoder().items()):
        copy = AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=_is_control(token),
        )
        (plain.add_special_tokens if copy.special else plain.add_tokens)([copy])
    if mark is not None:
        plain.add_tokens([AddedToken(mark, normalized=False)])
    plain.encode_special_tokens = True
    return plain
