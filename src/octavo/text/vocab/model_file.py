"""tokenizer.model, the protobuf that SentencePiece writes -> the keys that a GGUF file has for the same vocabulary.

Only the fields below are read; the format is protobuf's: a key (field << 3 | wire type) and a value, again and again.

    ModelProto       1 pieces…  2 trainer  3 normalizer
    piece            1 text  2 score (float32)  3 type
    trainer          3 model type (1 unigram, 2 BPE)  24 whitespace as suffix  40 unk id  41 bos id  42 eos id
    normalizer       2 charsmap (bytes)  3 add dummy prefix  4 remove extra whitespaces
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from octavo.errors import FileFormatError, ModelError
from octavo.text.vocab.vocabulary import NORMAL

MODELS = {1: "t5", 2: "llama"}
MINUS_ONE = 2**64 - 1
"""How protobuf writes the id -1: there is no such token."""


def read(data: bytes) -> dict[str, object]:
    """`tokenizer.ggml.*` keys. Raises FileFormatError (damaged) and ModelError (kinds that are not read)."""
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            piece = dict(_fields(value))
            text = piece.get(1, b"")
            try:
                tokens.append(text.decode())
            except (AttributeError, UnicodeDecodeError):
                raise FileFormatError(f"tokenizer.model: piece {len(tokens)}: got {text!r}, allowed: UTF-8") from None
            scores.append(_float(piece.get(2, 0.0)))
            types.append(piece.get(3, NORMAL))
        elif field == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif field == 3 and isinstance(value, bytes):
            normalizer = dict(_fields(value))
    if not tokens:
        raise FileFormatError("tokenizer.model: got no pieces, allowed: a SentencePiece model")
    kind = trainer.get(3, 1)
    if kind not in MODELS:
        raise ModelError(f"tokenizer.model: model type: got {kind}, allowed: 1 (unigram) or 2 (BPE)")
    if trainer.get(24, 0):
        raise ModelError("tokenizer.model: got spaces as suffixes, allowed: as prefixes")
    keys: dict[str, object] = {
        "model": MODELS[kind],
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "precompiled_charsmap": normalizer.get(2, b""),
        "add_space_prefix": bool(normalizer.get(3, 1)),
        "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
    }
    for name, field, default in (("unknown", 40, 0), ("bos", 41, 1), ("eos", 42, 2)):
        found = trainer.get(field, default)
        if found != MINUS_ONE:
            keys[f"{name}_token_id"] = found
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value): an int, 4 or 8 raw bytes, or the bytes of a string or message."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise FileFormatError(f"tokenizer.model: wire type at {at}: got {wire}, allowed: 0, 1, 2, 5")
        if size > end - at:
            raise FileFormatError(f"tokenizer.model: length at {at}: got {size}, allowed: at most {end - at}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise FileFormatError(f"tokenizer.model: got an unfinished number at {at}, allowed: up to ten bytes")


def _float(value: object) -> float:
    if isinstance(value, bytes) and len(value) == 4:
        number: float = struct.unpack("<f", value)[0]
        return number
    return 0.0
