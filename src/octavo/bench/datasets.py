"""What is asked: random prompts, prompts that share prefixes, prompts of a file. The seed decides everything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from octavo.errors import ConfigError

LOW, HIGH = 1000, 30000
"""Token ids of random prompts where the vocabulary is not known: ordinary tokens of every model we met."""
SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")


class Ask(Struct, frozen=True):
    """One request: token ids, a text, or a conversation, and how many tokens of answer are wanted."""

    prompt: list[int] | str | list[dict[str, Any]]
    out: int

    @property
    def is_chat(self) -> bool:
        return isinstance(self.prompt, list) and bool(self.prompt) and isinstance(self.prompt[0], dict)


class Ids:
    """Draws token ids from [low, high), leaving some out (special tokens)."""

    def __init__(self, seed: object, low: int = LOW, high: int = HIGH, *, without: Collection[int] = ()) -> None:
        self.random = Random(f"asks {seed}")
        self._allowed = [i for i in range(low, high) if i not in set(without)]
        assert self._allowed, "no token ids to draw from"

    def draw(self, count: int) -> list[int]:
        return self.random.choices(self._allowed, k=count)

    def length(self, mean: int, ratio: float) -> int:
        """Uniform in [mean * (1 - ratio), mean * (1 + ratio)], at least 1."""
        low, high = round(mean * (1 - ratio)), round(mean * (1 + ratio))
        return max(1, self.random.randint(low, high))


def random_asks(
    ids: Ids, count: int, *, input_len: int, output_len: int, range_ratio: float = 0.0, prefix_len: int = 0
) -> list[Ask]:
    """`count` prompts of input_len tokens after a shared prefix_len, each answered with output_len; lengths vary by
    range_ratio."""
    prefix = ids.draw(prefix_len)
    return [
        Ask(prefix + ids.draw(ids.length(input_len, range_ratio)), ids.length(output_len, range_ratio))
        for _ in range(count)
    ]


def prefix_asks(
    ids: Ids, count: int, *, prefix_len: int, suffix_len: int, num_prefixes: int, output_len: int
) -> list[Ask]:
    """`count` prompts over num_prefixes shared prefixes, in random order, each with a suffix of its own."""
    prefixes = [ids.draw(prefix_len) for _ in range(num_prefixes)]
    asks = [Ask(prefixes[i % num_prefixes] + ids.draw(suffix_len), output_len) for i in range(count)]
    ids.random.shuffle(asks)
    return asks


def file_asks(path: str, count: int | None, *, output_len: int) -> list[Ask]:
    """Prompts of a file, from the top, again from the top when `count` is more; None: each once.

    A `.jsonl` file holds objects with `prompt` (text or token ids) or `messages`, and optionally `max_tokens` (or
    `output_tokens`); any other file holds a prompt a line. Raises ConfigError, which names the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path: {path} cannot be read: {error}") from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if path.endswith(".jsonl"):
        asks = [_json_ask(path, n, line, output_len) for n, line in lines]
    else:
        asks = [Ask(line, output_len) for _, line in lines]
    if not asks:
        raise ConfigError(f"--dataset-path: {path} holds no prompt")
    return asks if count is None else [asks[i % len(asks)] for i in range(count)]


def _json_ask(path: str, number: int, line: str, output_len: int) -> Ask:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
    prompt = row.get("prompt", row.get("messages")) if isinstance(row, Mapping) else None
    out = row.get("max_tokens", row.get("output_tokens", output_len)) if isinstance(row, Mapping) else 0
    ids = isinstance(prompt, list) and all(type(t) is int for t in prompt)
    chat = isinstance(prompt, list) and all(isinstance(m, Mapping) and "role" in m for m in prompt)
    if not prompt or not (isinstance(prompt, str) or ids or chat) or type(out) is not int or out < 1:
        raise ConfigError(
            f"{path}:{number}: got {line[:60]!r}, allowed: an object with prompt (text or token ids) or messages, "
            "and optionally max_tokens (1 or more)"
        )
    return Ask(prompt, out)


def as_text(asks: list[Ask]) -> Iterator[Ask]:
    """Prompts of ids as words, for servers that take only text: equal ids give equal words, so shared prefixes stay
    shared. A word is about two tokens to most tokenizers; the server's usage says what it counted."""
    for ask in asks:
        if isinstance(ask.prompt, list) and not ask.is_chat:
            yield Ask(" ".join(_word(i) for i in ask.prompt[::2] if isinstance(i, int)), ask.out)
        else:
            yield ask


def _word(number: int) -> str:
    first, second = divmod(number, len(SYLLABLES))
    return SYLLABLES[first % len(SYLLABLES)] + SYLLABLES[second]
