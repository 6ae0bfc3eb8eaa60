"""What the front half gets of a checkpoint: vocabulary, templates by name, ids that end turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.errors import FileFormatError
from octavo.text.tokenizer import Tokenizer
from octavo.weights.front import (
    declared_eos,
    directory_templates,
    directory_vocabulary,
    gguf_templates,
    gguf_vocabulary,
)
from octavo.weights.gguf import GGUFFile
from octavo.weights.packed import is_packed, unpack
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors, write

NO_IDS = {"bos_token_id": None, "eos_token_id": []}


def test_templates_of_a_directory(tmp_path: Path) -> None:
    """Files of their own go before tokenizer_config.json, newer ones before older."""
    listed = [{"name": "default", "template": "T"}, {"name": "tool_use", "template": "U"}, {"name": 1}, "x"]
    assert directory_templates(tmp_path, {}) == {} == directory_templates(tmp_path, {"chat_template": 3})
    assert directory_templates(tmp_path, {"chat_template": "T"}) == {"default": "T"}
    assert directory_templates(tmp_path, {"chat_template": listed}) == {"default": "T", "tool_use": "U"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": {"default": "J", "rag": "R"}}))
    found = directory_templates(tmp_path, {"chat_template": listed})
    assert found == {"default": "J", "tool_use": "U", "rag": "R"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("A")
    (tmp_path / "chat_template.jinja").write_text("é", encoding="utf-8")
    assert directory_templates(tmp_path, {}) == {"default": "é", "rag": "R", "tool_use": "A"}
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FileFormatError, match="UTF-8"):
        directory_templates(tmp_path, {})
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"chat_template\.json"):
        directory_templates(tmp_path, {})


def test_templates_of_a_gguf_file() -> None:
    metadata = {
        "tokenizer.chat_template": "T",
        "tokenizer.chat_template.tool_use": "U",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_templates_x": "no",
    }
    assert gguf_templates(metadata) == {"default": "T", "tool_use": "U"}


def test_a_vocabulary_has_one_key() -> None:
    one = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "general.name": "x"}
    spec = gguf_vocabulary(one, [2])
    assert spec["eos_ids"] == [2] and "general.name" not in spec["metadata"]
    assert gguf_vocabulary({**one, "general.name": "y", "tokenizer.chat_template": "z"}, [3])["key"] == spec["key"]
    assert gguf_vocabulary({**one, "tokenizer.ggml.tokens": ["a", "c"]}, [2])["key"] != spec["key"]


def test_files_of_a_directory(tmp_path: Path) -> None:
    spec = directory_vocabulary(tmp_path, {}, NO_IDS)
    assert spec["format"] == "none" and "tekken.json" in spec["reason"]
    for name, kind in (("tekken.json", "tekken"), ("tokenizer.model", "sentencepiece"), ("tokenizer.json", "json")):
        (tmp_path / name).write_bytes(b"x")
        assert directory_vocabulary(tmp_path, {}, NO_IDS)["format"] == kind


def test_the_named_eos(tmp_path: Path) -> None:
    token = {"content": "<|im_end|>"}
    assert declared_eos(tmp_path, {"eos_token": token}) is None and declared_eos(tmp_path, {}) is None
    listed = {"eos_token": "<|im_end|>", "added_tokens_decoder": {"7": token, "8": {"content": "y"}, "z": 1}}
    assert declared_eos(tmp_path, listed) == 7
    added = [{"id": 3, "content": "a", "special": True}, {"id": 9, "content": "<|im_end|>", "special": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {}}))
    assert declared_eos(tmp_path, {"eos_token": token}) == 9
    assert declared_eos(tmp_path, {"eos_token": "other"}) is None
    (tmp_path / "tokenizer.json").write_text("{")
    assert declared_eos(tmp_path, {"eos_token": token}) is None


def test_arrays_stay_bytes(tmp_path: Path) -> None:
    """No object an entry until a tokenizer is built; then they are what they were."""
    file = GGUFFile(write(tmp_path / "m.gguf", gguf_bytes(LLAMA, llama_tensors())))
    spec = gguf_vocabulary(file.metadata, [0])
    assert {key: unpack(value) for key, value in spec["metadata"].items() if is_packed(value)} == {
        "tokenizer.ggml.tokens": ["<|im_end|>", "a", "b", "ab", "<|endoftext|>"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert Tokenizer.from_spec(spec).encode("ab") == Tokenizer.from_gguf(file.metadata).encode("ab") == [3]


def test_damaged_arrays() -> None:
    for data, code, count in (
        (b"\x01", "s", 1),
        (bytes(8), "s", 2),
        (b"\x01" + bytes(7) + b"\xff", "s", 1),
        (b"12", "f", 1),
    ):
        with pytest.raises(FileFormatError, match="array"):
            unpack({"code": code, "count": count, "data": data})
    assert not is_packed({"code": "x", "count": 1, "data": b""}) and not is_packed([1])
