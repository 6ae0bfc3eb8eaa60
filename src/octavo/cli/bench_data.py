"""Flags that say what is asked, shared by the benches, and where results go."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo import __version__
from octavo.bench.datasets import HIGH, LOW, Ask, Ids, file_asks, prefix_asks, random_asks
from octavo.cli.errors import UsageError


class DatasetFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Data set."""

    dataset_name: Literal["random", "prefix_repetition", "custom"] = "random"
    """random: random token ids. prefix_repetition: random ids after shared prefixes. custom: see --dataset-path."""
    dataset_path: str | None = None
    """A file of prompts: JSONL with `prompt` or `messages` (and `max_tokens`), or else one prompt a line."""
    num_prompts: int | None = None
    """How many requests. Default: 64, or every line of the file once."""
    random_input_len: int = 512
    """Tokens of a random prompt."""
    random_output_len: int = 128
    """Tokens of its answer."""
    random_range_ratio: float = 0.0
    """Lengths are uniform in length * (1 - ratio) to length * (1 + ratio)."""
    random_prefix_len: int = 0
    """Tokens that all random prompts begin with, beside --random-input-len."""
    prefix_repetition_prefix_len: int = 256
    """Tokens of a shared prefix."""
    prefix_repetition_suffix_len: int = 256
    """Tokens after it."""
    prefix_repetition_num_prefixes: int = 10
    """Prefixes in all."""
    prefix_repetition_output_len: int = 128
    """Tokens of an answer."""
    output_len: int = 128
    """Tokens of an answer to a prompt of a file that does not say."""
    ignore_eos: bool | None = None
    """Go on past the model's end token, so that answers have the length asked for. Default: for random data sets."""
    temperature: float = 0.0
    """Of sampling; 0 is greedy."""
    random_ids: str | None = None
    """Range LOW:HIGH of random token ids. Default: the vocabulary where it is known, else 1000:30000."""

    @property
    def ends(self) -> bool:
        """Whether answers ignore the end token."""
        return self.dataset_name != "custom" if self.ignore_eos is None else self.ignore_eos

    def check(self) -> None:
        """Raises UsageError for what no request could be."""
        for name in ("num_prompts", "random_input_len", "random_output_len", "output_len"):
            _at_least(name, getattr(self, name), 1)
        for name in ("prefix_len", "suffix_len", "num_prefixes", "output_len"):
            _at_least(f"prefix_repetition_{name}", getattr(self, f"prefix_repetition_{name}"), 1)
        _at_least("random_prefix_len", self.random_prefix_len, 0)
        if not 0 <= self.random_range_ratio < 1:
            raise UsageError(f"--random-range-ratio: got {self.random_range_ratio}, allowed: 0 to below 1")
        if (self.dataset_name == "custom") != (self.dataset_path is not None):
            raise UsageError("--dataset-path: allowed with --dataset-name custom, and needed there")

    def ids(self, seed: object, *, vocab: int | None = None, without: tuple[int, ...] = ()) -> Ids:
        """Where random prompts come from."""
        if self.random_ids is None:
            low, high = (LOW, HIGH) if vocab is None else (min(LOW, vocab // 2), vocab)
        else:
            first, _, last = self.random_ids.partition(":")
            if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
                raise UsageError(f"--random-ids: got {self.random_ids!r}, allowed: LOW:HIGH, as in 1000:30000")
            low, high = int(first), int(last)
        return Ids(seed, low, high, without=without)

    def asks(self, ids: Ids) -> list[Ask]:
        """The requests. Raises ConfigError for a file that cannot be used."""
        count = self.num_prompts or 64
        if self.dataset_name == "custom":
            assert self.dataset_path is not None, "check() comes first"
            return file_asks(self.dataset_path, self.num_prompts, output_len=self.output_len)
        if self.dataset_name == "prefix_repetition":
            return prefix_asks(
                ids,
                count,
                prefix_len=self.prefix_repetition_prefix_len,
                suffix_len=self.prefix_repetition_suffix_len,
                num_prefixes=self.prefix_repetition_num_prefixes,
                output_len=self.prefix_repetition_output_len,
            )
        return random_asks(
            ids,
            count,
            input_len=self.random_input_len,
            output_len=self.random_output_len,
            range_ratio=self.random_range_ratio,
            prefix_len=self.random_prefix_len,
        )

    @property
    def words(self) -> str:
        match self.dataset_name:
            case "custom":
                return f"prompts of {Path(self.dataset_path or '').name}"
            case "prefix_repetition":
                shared, own = self.prefix_repetition_prefix_len, self.prefix_repetition_suffix_len
                many, out = self.prefix_repetition_num_prefixes, self.prefix_repetition_output_len
                return f"{many} prefixes of {shared} tokens + {own} in, {out} out"
        spread = f" (± {100 * self.random_range_ratio:g} %)" if self.random_range_ratio else ""
        shared_text = f"{self.random_prefix_len} shared + " if self.random_prefix_len else ""
        return f"random, {shared_text}{self.random_input_len} in, {self.random_output_len} out{spread}"


class ResultFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Result."""

    json: bool = False
    """Print one JSON object instead of text."""
    result_filename: str | None = None
    """Write the JSON object here too."""

    def give(self, body: dict[str, Any], text: str) -> None:
        """Print the text or the object, and write the file."""
        data = msgspec.json.format(msgspec.json.encode(body), indent=1).decode()
        if self.result_filename:
            Path(self.result_filename).write_text(data + "\n", encoding="utf-8")
        print(data if self.json else text)


def about(bench: str, model: str) -> dict[str, Any]:
    """The head of every result: what was measured, where, when."""
    from octavo.kernels.machine import cpu_name

    return {
        "bench": bench,
        "schema": 1,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "octavo": __version__,
        "machine": {"cpu": cpu_name(), "cpus": len(os.sched_getaffinity(0))},
        "model_id": model,
    }


def numbers(flag: str, text: str, *, low: float = 0, high: float = float("inf")) -> list[float]:
    """A comma-separated list. Raises UsageError."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [float("nan")]
    if not all(low <= n <= high for n in found):
        raise UsageError(f"{flag}: got {text!r}, allowed: numbers from {low:g} to {high:g}, as in 90,99")
    return found


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"--{name.replace('_', '-')}: got {value}, allowed: {least} or more")
