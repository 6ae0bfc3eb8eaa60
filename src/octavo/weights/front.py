"""What the front half needs of a checkpoint: the vocabulary and the chat templates, as plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import FileFormatError, ModelError
from octavo.weights.gguf import GGUFArray
from octavo.weights.packed import is_packed, pack, unpack

MAX_VOCABULARY = 256_000_000
MAX_TEMPLATE = 4_000_000
DEFAULT = "default"
"""The name of the template that is used when none is asked for."""
SAVED = "tokenizer.gguf.json"
"""A GGUF file's vocabulary as plain data: packed directories made from such a file have it."""
VOCABULARIES = (("tokenizer.model", "sentencepiece"), ("tekken.json", "tekken"))
"""Files that are read where a directory has no tokenizer.json -> format of the spec."""


def gguf_vocabulary(metadata: Mapping[str, object], eos_ids: Sequence[int]) -> dict[str, Any]:
    """The tokenizer_spec of a GGUF file's metadata; its `key` is the same for all files with that vocabulary."""
    keys = {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(keys.items()):
        digest.update(f"{key}\0".encode())
        digest.update(value.raw if isinstance(value, GGUFArray) else repr(value).encode())
    plain = {key: pack(value) if isinstance(value, GGUFArray) else value for key, value in keys.items()}
    return {"format": "gguf", "metadata": plain, "eos_ids": list(eos_ids), "key": digest.hexdigest()}


def gguf_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """Name -> chat template."""
    start = "tokenizer.chat_template"
    found = {key: value for key, value in metadata.items() if isinstance(value, str) and key.startswith(start)}
    return {
        key[len(start) + 1 :] or DEFAULT: value for key, value in found.items() if key[len(start) :][:1] in ("", ".")
    }


def directory_vocabulary(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer_spec of a Hugging Face directory: its tokenizer.json, or else the file it was made from."""
    if (path / SAVED).is_file():
        return _saved(path / SAVED)
    more = {
        "tokenizer_config": dict(settings),
        "config": {key: config[key] for key in ("bos_token_id", "eos_token_id")},
    }
    if (path / "tokenizer.json").is_file():
        return {"format": "json", "tokenizer_json": _read(path / "tokenizer.json", MAX_VOCABULARY), **more}
    for name, kind in VOCABULARIES:
        if (path / name).is_file():
            data = _read(path / name, MAX_VOCABULARY)
            return {"format": kind, "data": data, "key": hashlib.blake2b(data, digest_size=16).hexdigest(), **more}
    return {"format": "none", "reason": f"{path}: no tokenizer.json, tokenizer.model or tekken.json in it"}


class _Saved(msgspec.Struct):
    metadata: dict[str, Any]
    eos_ids: list[int]
    key: str


def _saved(file: Path) -> dict[str, Any]:
    try:
        return {"format": "gguf", **msgspec.to_builtins(msgspec.json.decode(_read(file, MAX_VOCABULARY), type=_Saved))}
    except msgspec.DecodeError as error:
        raise FileFormatError(f"{file}: {error}") from None


def saved_vocabulary(spec: Mapping[str, Any]) -> bytes:
    """What to write as SAVED for a tokenizer_spec of a GGUF file."""
    arrays = {key: unpack(value) if is_packed(value) else value for key, value in spec["metadata"].items()}
    return msgspec.json.encode(_Saved(arrays, list(spec["eos_ids"]), spec["key"]))


class _Added(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_Added] = []


def declared_eos(path: Path, settings: Mapping[str, Any]) -> int | None:
    """The id of tokenizer_config.json's eos_token: chat models end turns with it, whatever config.json says."""
    token = settings.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    listed = settings.get("added_tokens_decoder")
    for key, item in listed.items() if isinstance(listed, dict) else ():
        if isinstance(item, dict) and item.get("content") == text and str(key).isdecimal():
            return int(key)
    if listed or not (path / "tokenizer.json").is_file():
        return None
    try:
        added = msgspec.json.decode(_read(path / "tokenizer.json", MAX_VOCABULARY), type=_AddedTokens).added_tokens
    except msgspec.DecodeError:
        return None  # refused when the tokenizer is built, with the reason
    return next((token.id for token in added if token.content == text), None)


def directory_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Name -> chat template. Files of their own go before those in tokenizer_config.json. Raises FileFormatError."""
    found = _templates(settings.get("chat_template"))
    file = path / "chat_template.json"
    if file.is_file():
        try:
            found.update(
                _templates(msgspec.json.decode(_read(file, MAX_TEMPLATE), type=dict[str, Any]).get("chat_template"))
            )
        except msgspec.DecodeError as error:
            raise FileFormatError(f"{file}: {error}") from None
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = _text(file)
    file = path / "chat_template.jinja"
    if file.is_file():
        found[DEFAULT] = _text(file)
    return found


def _templates(value: object) -> dict[str, str]:
    """One template, or several with names: [{"name": …, "template": …}] or {name: template}."""
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if isinstance(name, str) and isinstance(text, str)}


def _text(path: Path) -> str:
    try:
        return _read(path, MAX_TEMPLATE).decode()
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: got bytes that are not UTF-8, allowed: UTF-8") from None


def _read(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise FileFormatError(f"{path}: got {size} bytes, allowed: at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
