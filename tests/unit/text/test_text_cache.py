"""Kept tokenizers: found again, rebuilt where damaged, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab import cache as cache_module
from octavo.text.vocab import gguf, sentencepiece
from octavo.text.vocab.cache import TokenizerCache, user_folder
from tests.unit.text.test_text_sentencepiece import metadata

SPEC = {"format": "gguf", "metadata": metadata(), "key": "k"}


def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often a vocabulary is built."""
    seen: list[int] = []
    real = sentencepiece.build_bpe

    def counting(meta: gguf.Metadata) -> object:
        seen.append(1)
        return real(meta)

    kind = gguf.KINDS["llama"]
    patched = gguf.Kind(build=counting, alphabet=kind.alphabet, add_bos=kind.add_bos, kept=True)
    monkeypatch.setitem(gguf.KINDS, "llama", patched)
    return seen


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, cache = builds(monkeypatch), TokenizerCache(tmp_path / "deep" / "er")
    first, second = (Tokenizer.from_spec(SPEC, cache=cache) for _ in range(2))
    assert len(seen) == 1 and second.encode("ab </s>é\n") == first.encode("ab </s>é\n")
    assert second.special_ids == first.special_ids and second.vocab_size == first.vocab_size
    (file,) = (tmp_path / "deep" / "er").iterdir()
    for damage in (b"", file.read_bytes()[:-1], file.read_bytes().replace(b"version", b"versiom"), b"x" * 99):
        file.write_bytes(damage)
        assert Tokenizer.from_spec(SPEC, cache=cache).encode("ab") == first.encode("ab")
    assert len(seen) == 5
    cache.store(file.stem, "{}")  # whole, and no tokenizer
    assert Tokenizer.from_spec(SPEC, cache=cache).encode("ab") == first.encode("ab")
    assert Tokenizer.from_spec({**SPEC, "key": None}, cache=cache).encode("ab") == first.encode("ab")
    assert [path.suffix for path in file.parent.iterdir()] == [".tok"], "no parts stay behind"


def test_nothing_fails_without_a_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = TokenizerCache(tmp_path / "file" / "below")
    assert Tokenizer.from_spec(SPEC, cache=cache).encode("ab")[0] == 1


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_BYTES", 3 * 235)
    cache = TokenizerCache(tmp_path)
    for i, name in enumerate("abcd"):
        cache.store(name, "x" * 200)
        os.utime(tmp_path / f"{name}.tok", (i + 1, i + 1))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "c", "d"]
    assert cache.load("b") == "x" * 200  # used: now the newest
    cache.store("e", "y" * 200)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "d", "e"]
    for name, age in (("old", 1), ("new", 2e9)):
        (tmp_path / f"{name}.part").write_text("")
        os.utime(tmp_path / f"{name}.part", (age, age))
    cache.store("e", "y" * 200)
    assert [path.name for path in tmp_path.glob("*.part")] == ["new.part"], "what a killed writer left goes"
    (tmp_path / "new.part").unlink()
    cache.store("huge", "z" * 2000)
    assert [path.stem for path in tmp_path.iterdir()] == ["huge"]


def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "octavo" / "tokenizers"
