"""tokenizer.json, handed to the `tokenizers` package as it is, with what tokenizer_config.json and the checkpoint's
config say about BOS and EOS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from octavo.errors import ModelError
from octavo.text.vocab.vocabulary import Vocabulary, content, token_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Alphabet = Literal["bytes", "metaspace"]
SPACED = frozenset(("Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"))
"""Decoders of SentencePiece's alphabet."""


class _Model(msgspec.Struct):
    type: str | None = None
    unk_id: int | None = None
    unk_token: str | None = None


class _Head(msgspec.Struct):
    """The part of a tokenizer.json that decides how tokens spell bytes."""

    decoder: dict[str, Any] | None = None
    model: _Model | None = None


def load(
    data: bytes,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Vocabulary:
    """`settings`: tokenizer_config.json; `config`: bos_token_id and eos_token_id. Raises ModelError."""
    from tokenizers import Tokenizer as Backend

    try:
        head = msgspec.json.decode(data, type=_Head)
        backend = Backend.from_str(str(data, "utf-8"))
    except Exception as error:  # the package raises bare Exception
        raise ModelError(f"tokenizer.json: {error}") from None
    if head.model is not None and head.model.type in ("WordPiece", "WordLevel"):
        raise ModelError(f"tokenizer.json: model: got {head.model.type}, allowed: BPE or Unigram")
    alphabet, strip_start = _decoding(head.decoder)
    add_declared(backend, settings)
    leading = backend.encode("", add_special_tokens=True).ids[:1]
    model = head.model or _Model()
    unknown = model.unk_id if model.unk_token is None else backend.token_to_id(model.unk_token)
    return finish(
        backend, settings, config, alphabet=alphabet, strip_start=strip_start, leading=leading, unknown_id=unknown
    )


def finish(
    backend: Backend,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    alphabet: Alphabet,
    strip_start: bool,
    leading: list[int],
    unknown_id: int | None,
) -> Vocabulary:
    """What the files of a directory say besides the vocabulary. `leading`: what its post-processor puts first."""
    bos_text, eos_text = content(settings.get("bos_token")), content(settings.get("eos_token"))
    bos_id = backend.token_to_id(bos_text) if bos_text else token_id(config.get("bos_token_id"))
    add_bos = settings.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = bos_id is not None and leading == [bos_id]
    eos = config.get("eos_token_id")
    eos_ids = [eos] if isinstance(eos, int) else list(eos or ())
    named = backend.token_to_id(eos_text) if eos_text else None
    if named is not None and named not in eos_ids:
        eos_ids.append(named)
    return Vocabulary(
        backend=backend,
        alphabet=alphabet,
        strip_start=strip_start,
        bos_id=bos_id,
        eos_id=named if named is not None else next(iter(eos_ids), None),
        eos_ids=tuple(eos_ids),
        add_bos=add_bos and bos_id is not None,
        unknown_id=unknown_id,
        named=_named(settings),
    )


def _named(settings: Mapping[str, Any]) -> dict[str, str]:
    """Every special token that tokenizer_config.json gives a name to."""
    more = settings.get("extra_special_tokens")
    every = {**(more if isinstance(more, Mapping) else {}), **settings}
    found = {name: content(value) for name, value in every.items() if str(name).endswith("_token")}
    return {name: text for name, text in found.items() if text}


def add_declared(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Tokens that tokenizer_config.json lists (id -> token) and the vocabulary does not have. Raises ModelError."""
    from tokenizers import AddedToken

    declared = settings.get("added_tokens_decoder")
    if not isinstance(declared, Mapping):
        return
    known = backend.get_added_tokens_decoder()
    new = {int(i): token for i, token in declared.items() if str(i).isdecimal() and int(i) not in known}
    for i, token in sorted(new.items()):
        text = content(token)
        if not text:
            continue
        flags = {name: token[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in token}
        special = bool(token.get("special", False))
        backend.add_tokens([AddedToken(text, special=special, **flags)])
        got = backend.token_to_id(text)
        if got != i:
            raise ModelError(f"tokenizer_config.json: added_tokens_decoder: got {text!r} at {i}, allowed: at {got}")


def _decoding(decoder: dict[str, Any] | None) -> tuple[Alphabet, bool]:
    """(alphabet, strip_start) of a tokenizer.json's decoder."""
    steps = decoder.get("decoders", [decoder]) if decoder else []
    kinds = [step.get("type") for step in steps if isinstance(step, dict)]
    if kinds == ["ByteLevel"]:
        return "bytes", False
    if set(kinds) <= SPACED and {"Replace", "Metaspace"} & set(kinds):
        strips = any(
            (s.get("type") == "Strip" and s.get("start") == 1)
            or (s.get("type") == "Metaspace" and s.get("prepend_scheme", "always") != "never")
            for s in steps
        )
        return "metaspace", strips
    got = ", ".join(map(str, kinds)) or "none"
    raise ModelError(f"tokenizer.json: decoder: got {got}, allowed: ByteLevel, or Metaspace with byte fallback")
