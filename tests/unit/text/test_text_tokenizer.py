"""Tokenizers: the oracle's ids, the traps, and text that only looks special."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequest, ModelError
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab.pretokenizers import PRE_TOKENIZERS
from tests.child import child_env
from tests.unit.text.conftest import metaspace_json, tiny_metadata

ORACLE = Path(__file__).parents[2] / "data" / "smollm2-135m-instruct-q4_1.json"


def oracle_prompts() -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads(ORACLE.read_text())["prompts"]
    return prompts


@pytest.mark.parametrize("prompt", oracle_prompts(), ids=lambda prompt: prompt["name"])
def test_oracle_ids(prompt: dict[str, Any], smol: Tokenizer) -> None:
    assert smol.encode(prompt["text"], parse_special=True) == prompt["prompt_ids"]
    assert smol.decode(prompt["greedy_ids"], skip_special_tokens=False) == prompt["greedy_text"]
    plain = smol.encode(prompt["text"])
    assert smol.special_ids.isdisjoint(plain) and smol.decode(plain) == prompt["text"]


def test_smollm2_numbers(smol: Tokenizer) -> None:
    assert (smol.vocab_size, smol.bos_id, smol.eos_ids, smol.add_bos) == (49152, 1, (0, 2), False)
    assert smol.eos_id == 2, "templates write <|im_end|>, whatever else ends a turn"
    assert smol.special_ids == frozenset(range(17))
    assert smol.token_id("<|im_end|>") == 2 and smol.token_id("no such token") is None
    assert smol.token_bytes(49152) == b"" and smol.token_bytes(-1) == b""


def test_digits_are_cut_first(smol: Tokenizer) -> None:
    """The trap: without it the two spaces before 12 are two tokens."""
    assert [smol.token_text(i) for i in smol.encode("a  12")] == ["a", "  ", "1", "2"]


def test_tokenizer_json_gives_the_same(smol: Tokenizer) -> None:
    again = Tokenizer.from_json(
        smol._backend.to_str().encode(), {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    )
    assert (again.bos_id, again.eos_ids, again.add_bos, again.special_ids) == (1, (2,), False, smol.special_ids)
    for prompt in oracle_prompts():
        assert again.encode(prompt["text"], parse_special=True) == prompt["prompt_ids"]
        assert again.encode(prompt["text"]) == smol.encode(prompt["text"])


def test_nfc_of_qwen2() -> None:
    qwen = Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": "qwen2"}))
    assert qwen.encode("e\u0301") == qwen.encode("\u00e9")
    assert len(qwen.encode("12")) == 2


def test_pre_tokenizers(tiny: Tokenizer) -> None:
    for name, rule in PRE_TOKENIZERS.items():
        tokenizer = Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": name}))
        assert tokenizer.add_bos == rule.add_bos, name
        assert tokenizer.decode(tokenizer.encode("hello ab, 123\n\n x")) == "hello ab, 123\n\n x", name
    llama3 = Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.pre": "llama-bpe"}))
    pieces = llama3._backend.pre_tokenizer.pre_tokenize_str("I'm 12345 x")
    assert [text for text, _ in pieces] == ["I", "'m", "Ġ", "123", "45", "Ġx"]
    assert llama3.encode("hello")[0] == 0
    assert Tokenizer.from_gguf(tiny_metadata(**{"tokenizer.ggml.add_bos_token": True})).encode("a")[0] == 0


def test_bos(tiny: Tokenizer) -> None:
    a = tiny.encode("a")
    assert tiny.encode("a", add_bos=True) == [0, *a]
    assert tiny.encode("<|endoftext|>a", add_bos=True, parse_special=True) == [0, *a], "one BOS, not two"
    assert tiny.encode("", add_bos=True) == [0] and tiny.encode("") == []


def test_plain_text_is_never_special(tiny: Tokenizer) -> None:
    text = "hello <|im_end|> ab<|endoftext|>"
    assert {0, 2} <= set(tiny.encode(text, parse_special=True))
    plain = tiny.encode(text)
    assert tiny.special_ids.isdisjoint(plain) and tiny.decode(plain) == text
    assert 3 in tiny.encode("<tool_call>"), "a user-defined token is part of the text's vocabulary"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["<|im_end|>", "<|im_", "end|>", "<|", "|>"])), max_size=6)
)
def test_round_trip(tiny: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text and tiny.special_ids.isdisjoint(ids)


def test_lone_surrogates(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogates"):
        tiny.encode("a\ud800")


def test_metaspace(metaspace: Tokenizer) -> None:
    assert (metaspace.bos_id, metaspace.eos_ids, metaspace.add_bos) == (1, (2,), True)
    many = Tokenizer.from_json(metaspace_json(), {"eos_token": "</s>"}, {"eos_token_id": [0, 2]})
    assert (many.eos_id, many.eos_ids) == (2, (0, 2))
    for text in ("a ab b", "aé\n", "  a", "日本 a", "👩‍👩‍👧", "", "a  "):
        ids = metaspace.encode(text)
        assert ids[0] == 1
        assert metaspace.decode(ids) == metaspace._backend.decode(ids) == text
    assert metaspace.token_bytes(3 + 10) == b"\n"
    assert Tokenizer.from_json(metaspace_json(), {"bos_token": "<s>", "add_bos_token": False}).add_bos is False


REFUSED = {
    "model": ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model: got 'bert'"),
    "scores": ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.scores: got 0 entries"),
    "pre": ({"tokenizer.ggml.pre": "martian"}, "tokenizer.ggml.pre: got 'martian'"),
    "tokens": ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens"),
    "no tokens": ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens"),
    "doubled": ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "1 doubled"),
    "types": ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type: got 1"),
    "merge": ({"tokenizer.ggml.merges": ["a b c"]}, "tokenizer.ggml.merges"),
    "merge out of vocabulary": ({"tokenizer.ggml.merges": ["zzz y"]}, "tokenizer.ggml.merges"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str) -> None:
    more, says = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_gguf(tiny_metadata(**more))
    assert says in str(caught.value)


def test_refuses_tokenizer_json() -> None:
    wordpiece = json.loads(metaspace_json())
    wordpiece["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    for data in (b"", b"{", b"[]", b"\xff", json.dumps(wordpiece).encode()):
        with pytest.raises(ModelError, match=r"tokenizer\.json"):
            Tokenizer.from_json(data)
    with pytest.raises(ModelError, match="no tokenizer"):
        Tokenizer.from_spec({"format": "none", "reason": "no tokenizer.json in it"})


def test_needs_no_numpy() -> None:
    modules = ", ".join(f"octavo.text.{name}" for name in ("tokenizer", "chat", "sandbox", "stop", "detokenize"))
    code = f"import sys, tokenizers, {modules}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=child_env()).returncode == 0
