"""Tokenizers of real models against their own libraries, and GGUF files against the oracle and their originals.

Real ones come from OCTAVO_TEST_TOKENIZERS (scripts/fetch-tokenizers fills a folder) and OCTAVO_TEST_MODELS.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab.alphabet import byte_of_char
from octavo.text.vocab.pretokenizers import PRE_TOKENIZERS, find, install
from octavo.text.vocab.tekken import Merges
from octavo.text.vocab.vocabulary import NORMAL
from octavo.weights.front import declared_eos, directory_vocabulary
from octavo.weights.gguf import GGUFFile
from tests.models_at_hand import at_hand
from tests.texts import mixed_texts

LONG = ["x" * 20_000, "word " * 5_000, "日本" * 5_000, " " * 3_000, "1" * 3_000]
NO_IDS = {"bos_token_id": None, "eos_token_id": []}


def folder(name: str) -> Path:
    at = os.environ.get("OCTAVO_TEST_TOKENIZERS")
    if not at or not (Path(at) / name).is_dir():
        pytest.skip(f"no {name} under OCTAVO_TEST_TOKENIZERS (scripts/fetch-tokenizers)")
    return Path(at) / name


def settings(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def load(path: Path) -> Tokenizer:
    return Tokenizer.from_spec(directory_vocabulary(path, settings(path), NO_IDS))


def gguf(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(at_hand(name)).metadata)


@pytest.mark.parametrize("name", ["qwen3", "llama2", "llama3_1", "gemma3", "gptoss", "deepseek"])
def test_tokenizer_json(name: str) -> None:
    """Every id and every decoded text is the library's; a BOS once."""
    from tokenizers import Tokenizer as Library

    path = folder(name)
    ours, library = load(path), Library.from_file(str(path / "tokenizer.json"))
    for text in [*mixed_texts(), *LONG]:
        want = library.encode(text).ids
        assert ours.encode(text, parse_special=True) == want, text[:60]
        assert ours.decode(want) == library.decode(want), text[:60]
        plain = ours.encode(text, add_bos=False)
        assert ours.special_ids.isdisjoint(plain)
    assert ours.eos_id == declared_eos(path, settings(path))


@pytest.mark.parametrize("name", ["mistral-v1", "mistral-v2", "mistral-v3", "mistral-v7", "mistral-v7m1"])
def test_tokenizer_model(name: str) -> None:
    sentencepiece = pytest.importorskip("sentencepiece", reason="needs the sentencepiece package")
    path = folder(name)
    ours, library = load(path), sentencepiece.SentencePieceProcessor(str(path / "tokenizer.model"))
    for text in [*mixed_texts(), *LONG]:
        want = library.encode(text)
        assert ours.encode(text) == [1, *want], text[:60]
        assert ours.decode(want) == library.decode(want), text[:60]


@pytest.mark.parametrize("name", ["mistral-tekken", "mistral-tekken-240718"])
def test_tekken(name: str) -> None:
    library = pytest.importorskip("mistral_common.tokens.tokenizers.tekken", reason="needs mistral-common")
    path = folder(name)
    ours, theirs = load(path), library.Tekkenizer.from_file(str(path / "tekken.json"))
    for text in [*mixed_texts(), *LONG]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, bos=True, eos=False), text[:60]
        assert ours.decode(ids) == text


def pattern(file: Path, name: str) -> str:
    """The string that a package's source assigns to `name`."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Assign)]
    (value,) = [n.value.value for n in nodes if isinstance(n.value, ast.Constant) and ast.unparse(n.targets[0]) == name]
    assert isinstance(value, str)
    return value


@pytest.mark.parametrize(
    ("name", "file", "assigned", "pre"),
    [
        ("llama3-tiktoken", "tokenizer.model", "pat_str", "llama-bpe"),
        ("llama4-tiktoken", "tokenizer.model", "O200K_PATTERN", "llama4"),
        ("qwen-tiktoken", "qwen.tiktoken", "PAT_STR", "qwen2"),
        ("qwen3_6-tiktoken", "qwen.tiktoken", "QWEN3_5_PAT_STR", "qwen35"),
    ],
)
def test_tiktoken(name: str, file: str, assigned: str, pre: str) -> None:
    """Vocabularies that exist as ranks: as a GGUF file holds them, with merges made of the ranks."""
    tiktoken: Any = pytest.importorskip("tiktoken", reason="needs tiktoken 0.7.0")
    path = folder(name)
    words = [base64.b64decode(line.split()[0]) for line in (path / file).read_bytes().splitlines()]
    ranks = {word: rank for rank, word in enumerate(words)}
    library = tiktoken.Encoding(
        name, pat_str=pattern(path / "pattern.py", assigned), mergeable_ranks=ranks, special_tokens={}
    )
    spell = {byte: char for char, byte in byte_of_char().items()}
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": ["".join(map(spell.__getitem__, word)) for word in words],
        "token_type": [NORMAL] * len(words),
        "merges": list(Merges(words)),
        "add_bos_token": False,
    }
    ours = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    for text in [*mixed_texts(), *LONG]:
        plain = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[pre].nfc else text  # Qwen's package does the same
        ids = ours.encode(text)
        assert ids == library.encode_ordinary(plain), text[:60]
        assert ours.decode(ids) == plain


@pytest.mark.parametrize(("name", "pre"), [("deepseek", "deepseek-v3"), ("gptoss", "gpt-4o"), ("qwen3", "qwen2")])
def test_rules_cut_as_the_originals(name: str, pre: str) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    library, ours = Library.from_file(str(folder(name) / "tokenizer.json")), Library(models.BPE())
    install(find(pre), ours)
    for text in mixed_texts():
        assert ours.pre_tokenizer.pre_tokenize_str(text) == library.pre_tokenizer.pre_tokenize_str(text), text


@pytest.mark.parametrize(
    ("file", "name", "nfc"),
    [
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen3", True),
        ("gemma-3-270m-base-q4_k_m.gguf", "gemma3", False),
    ],
)
def test_gguf_is_the_original(file: str, name: str, nfc: bool) -> None:
    """Also runs of spaces longer than any token, where the oracle's rebuilt Gemma tokenizer cuts otherwise."""
    from tokenizers import Tokenizer as Library

    ours, library = gguf(file), Library.from_file(str(folder(name) / "tokenizer.json"))
    for text in [*mixed_texts(), *LONG, "a" + " " * 33 + "b"]:
        ids = ours.encode(text, parse_special=True)
        if "<unk>" in text and name == "gemma3":
            continue  # the original lists more tokens of this look
        assert ids == library.encode(text).ids, text[:60]
        assert ours.decode(ours.encode(text)) == (unicodedata.normalize("NFC", text) if nfc else text)


SHARED = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("file", "oracle"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1"),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m"),
        ("gemma-3-270m-base-q4_k_m.gguf", "gemma-3-270m-base-q4_k_m"),
    ],
)
def test_oracle_ids(file: str, oracle: str) -> None:
    """The 20 prompts of each. Two of Gemma's hold a run of 33 spaces: 31 + 2 in the original tokenizer (and here),
    16 + 17 in the oracle, whose tokenizer was rebuilt from the file."""
    tokenizer = gguf(file)
    for prompt in json.loads((SHARED / f"{oracle}.ids.json").read_text(encoding="utf-8")):
        ids = tokenizer.encode(prompt["text"], parse_special=True)
        if tokenizer.bos_id == 2 and " " * 33 in prompt["text"]:
            assert len(ids) == len(prompt["ids"]) and tokenizer.decode(ids) == tokenizer.decode(prompt["ids"])
        else:
            assert ids == prompt["ids"], prompt["name"]
