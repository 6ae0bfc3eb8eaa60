"""A checkpoint's `tokenizer_spec` -> a Vocabulary: a row a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import ModelError
from octavo.text.vocab import gguf, tokenizer_json
from octavo.text.vocab.cache import TokenizerCache
from octavo.text.vocab.vocabulary import Vocabulary

Spec = Mapping[str, Any]


def load(spec: Spec, *, cache: TokenizerCache | None = None) -> Vocabulary:
    """Raises ModelError."""
    found = FORMATS.get(spec["format"])
    if found is None:
        raise ModelError(spec["reason"])
    return found(spec, cache)


def _gguf(spec: Spec, cache: TokenizerCache | None) -> Vocabulary:
    return gguf.load(spec["metadata"], eos_ids=spec.get("eos_ids"), key=spec.get("key"), cache=cache)


def _json(spec: Spec, cache: TokenizerCache | None) -> Vocabulary:
    return tokenizer_json.load(spec["tokenizer_json"], spec.get("tokenizer_config") or {}, spec.get("config") or {})


def _sentencepiece(spec: Spec, cache: TokenizerCache | None) -> Vocabulary:
    from octavo.text.vocab import model_file

    return _file(spec, model_file.read(spec["data"]), cache)


def _tekken(spec: Spec, cache: TokenizerCache | None) -> Vocabulary:
    from octavo.text.vocab import tekken

    return _file(spec, tekken.read(spec["data"]), cache)


def _file(spec: Spec, metadata: Mapping[str, object], cache: TokenizerCache | None) -> Vocabulary:
    """A vocabulary file of a directory, with what the files beside it say about added tokens, BOS and EOS."""
    built = gguf.load(metadata, key=spec.get("key"), cache=cache, kept=True)
    settings, config = spec.get("tokenizer_config") or {}, spec.get("config") or {}
    tokenizer_json.add_declared(built.backend, settings)
    names = {"bos_token": built.bos_id, "eos_token": built.eos_id}
    own = {name: built.backend.id_to_token(i) for name, i in names.items() if i is not None}
    leading = [built.bos_id] if built.add_bos and built.bos_id is not None else []
    said = {name: value for name, value in settings.items() if value is not None}
    return tokenizer_json.finish(
        built.backend,
        {**own, **said},
        config,
        alphabet=built.alphabet,
        strip_start=built.strip_start,
        leading=leading,
        unknown_id=built.unknown_id,
    )


FORMATS: dict[str, Callable[[Spec, TokenizerCache | None], Vocabulary]] = {
    "gguf": _gguf,
    "json": _json,
    "sentencepiece": _sentencepiece,
    "tekken": _tekken,
}
