"""What every kind of vocabulary comes to: a built tokenizer of the `tokenizers` package, and how to read its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from octavo.errors import ModelError
from octavo.weights.packed import is_packed, unpack

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types, the same numbers in GGUF and in SentencePiece files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Built, and not changed any more."""

    backend: Backend
    alphabet: Literal["bytes", "metaspace"]
    """How token strings spell bytes: byte-level BPE's printable characters, or ▁ for a space and <0x0A> for a byte."""
    strip_start: bool = False
    """A decoded text loses the one space that encoding put in front of it."""
    bos_id: int | None
    eos_id: int | None
    """The one that templates write as eos_token."""
    eos_ids: tuple[int, ...]
    """Every id that ends a turn."""
    add_bos: bool
    unknown_id: int | None = None
    """What stands for text that has no token."""
    named: Mapping[str, str] = field(default_factory=dict)
    """More tokens under the names that templates know them by: pad_token, unk_token, ..."""


def add_tokens(
    backend: Backend,
    tokens: Sequence[str],
    types: Sequence[object],
    *,
    rstrip: Callable[[str], bool] = lambda text: False,
) -> None:
    """Control and user-defined tokens are matched before anything else. They are in the vocabulary: ids stay. `rstrip`:
    whether a control token takes the white space behind it."""
    from tokenizers import AddedToken

    special: list[AddedToken | str] = []
    plain: list[AddedToken | str] = []
    for text, kind in zip(tokens, types, strict=False):
        if kind in (UNKNOWN, CONTROL):
            special.append(AddedToken(text, special=True, normalized=False, rstrip=rstrip(text)))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(text, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def token_id(value: object) -> int | None:
    """A token id, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def content(value: object) -> str | None:
    """A token in tokenizer_config.json: a string, or a dict with its content."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


class Metadata:
    """Typed reads of the `tokenizer.ggml.*` keys of a GGUF file. Everything raises ModelError that names the key."""

    def __init__(self, keys: Mapping[str, object]) -> None:
        self._keys = keys

    def get(self, key: str, default: object = None) -> object:
        value = self._keys.get(f"tokenizer.ggml.{key}")
        return default if value is None else value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"tokenizer.ggml.{key}: got {type(value).__name__}, allowed: true or false")
        return value

    def id(self, key: str) -> int | None:
        return token_id(self.get(f"{key}_token_id"))

    def strings(self, key: str) -> list[str]:
        items = self._list(key)
        if not items or not isinstance(items[0], str):
            got = f"a list of {type(items[0]).__name__}" if items else "nothing"
            raise ModelError(f"tokenizer.ggml.{key}: got {got}, allowed: a list of strings")
        return items

    def vocabulary(self) -> tuple[list[str], list[int]]:
        """(tokens, their types: all normal where the file has none), each token once."""
        tokens, types = self.strings("tokens"), self.types()
        if types and len(types) != len(tokens):
            got, allowed = len(types), f"{len(tokens)}, one a token"
            raise ModelError(f"tokenizer.ggml.token_type: got {got}, allowed: {allowed}")
        doubled = len(tokens) - len(set(tokens))
        if doubled:
            raise ModelError(f"tokenizer.ggml.tokens: got {doubled} doubled entries, allowed: each token once")
        return tokens, types or [NORMAL] * len(tokens)

    def types(self) -> list[int]:
        """Of every token; nothing where the file has none."""
        return self._list("token_type")

    def scores(self, count: int) -> list[float]:
        scores = self._list("scores")
        if len(scores) != count or not set(map(type, scores)) <= {int, float}:
            raise ModelError(f"tokenizer.ggml.scores: got {len(scores)} entries, allowed: {count} numbers")
        return scores

    def bytes_of(self, key: str) -> bytes:
        """A list of small integers (GGUF has no type for bytes) or bytes; b"" where there is none."""
        value = self.get(key, b"")
        try:
            return value if isinstance(value, bytes) else bytes(item & 0xFF for item in self._list(key))
        except TypeError:
            raise ModelError(f"tokenizer.ggml.{key}: got a list of other things, allowed: bytes") from None

    def _list(self, key: str) -> list[Any]:
        value = self.get(key)
        if is_packed(value):
            assert isinstance(value, Mapping)
            return unpack(value)
        return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else []
