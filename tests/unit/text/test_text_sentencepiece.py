"""SentencePiece vocabularies from GGUF, against the algorithm written out.

Compared once with the sentencepiece package on the three 32k vocabularies that mistral-common carries: 2,318 texts each
(licences, source, scripts, emoji, random mixtures), all ids equal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from tests.unit.text.conftest import metaspace_json

PIECES = ["▁", "a", "b", "c", "é", "▁a", "ab", "▁ab", "bc", "abc", "aa", "aab", "▁▁", "cab", "▁b"]


def metadata(**more: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "[INST]"]
    scores = [0.0] * 259 + [-float((7 * i) % 16) if len(p) > 1 else -100.0 - i for i, p in enumerate(PIECES)] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def by_the_book(text: str, *, prefix: bool = True) -> list[int]:
    """Joins the neighbours whose union scores highest, the leftmost of equals, until none is left."""
    numbers = metadata()
    ids = {token: i for i, token in enumerate(numbers["tokenizer.ggml.tokens"])}
    scores = numbers["tokenizer.ggml.scores"]
    parts = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
    while True:
        joins = [(scores[ids[a + b]], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in PIECES]
        if not joins:
            break
        at = -max(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]


@pytest.fixture(scope="module")
def llama2() -> Tokenizer:
    return Tokenizer.from_gguf(metadata())


@settings(max_examples=400, deadline=None)
@given(st.text("aab bcé日\n", max_size=12))
def test_by_the_book(llama2: Tokenizer, text: str) -> None:
    ids = llama2.encode(text, add_bos=False)
    assert ids == by_the_book(text)
    assert llama2.decode(ids) == text


def test_numbers_and_flags(llama2: Tokenizer) -> None:
    assert (llama2.bos_id, llama2.eos_ids, llama2.add_bos, llama2.strip_start) == (1, (2,), True, True)
    assert llama2.encode("ab")[0] == 1 and llama2.special_ids == {0, 1, 2, llama2.token_id("[INST]")}
    bare = Tokenizer.from_gguf(
        metadata(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    )
    assert bare.encode("ab c") == by_the_book("ab c", prefix=False) and bare.decode(bare.encode(" ab")) == " ab"


def test_phi3_takes_white_space_behind_its_tokens() -> None:
    """Its template writes a line end behind each, its tokenizer drops them; GGUF does not say so."""
    names = ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
    keys = metadata(**{"tokenizer.ggml.add_space_prefix": False})
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], *names]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], *[3] * 5]
    keys["tokenizer.ggml.scores"] = [*keys["tokenizer.ggml.scores"], *[0.0] * 5]
    phi3 = Tokenizer.from_gguf(keys)
    end_of_text, assistant, _, end, user = (phi3.token_id(name) for name in names)
    source = "<|user|>\n{{ messages[0].content }}<|end|>\n<|assistant|>\n"
    want = [1, user, *phi3.encode("ab", add_bos=False), end, assistant]
    assert ChatTemplate(source, tokenizer=phi3).encode([{"role": "user", "content": "ab"}]) == want
    assert phi3.encode("<|user|>\nab<|end|>\n<|assistant|>\n", parse_special=True) == want
    kept = phi3.encode("<|endoftext|>\n", add_bos=False, parse_special=True)
    assert kept[0] == end_of_text and len(kept) == 2


def test_control_text_is_plain(llama2: Tokenizer) -> None:
    text = "a</s>b[INST]<s>"
    assert llama2.special_ids.isdisjoint(llama2.encode(text, add_bos=False))
    assert llama2.decode(llama2.encode(text)) == text


def test_space_after_control_tokens(llama2: Tokenizer) -> None:
    """A prefix by normalizer goes before every text, one by Metaspace "first" before the first only."""
    import json

    template = "{{ bos_token }}{% for m in messages %}[INST]{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "ab"}]
    ids = ChatTemplate(template, tokenizer=llama2).encode(messages)
    assert ids == [1, llama2.token_id("[INST]"), *by_the_book("ab")]
    spec = json.loads(metaspace_json())
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    first = Tokenizer.from_json(json.dumps(spec).encode(), {"bos_token": "<s>"})
    ids = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer=first).encode(messages)
    whole = first._backend.encode("<s>ab", add_special_tokens=False).ids
    assert ids == whole and first.token_id("▁a") not in ids and first.token_id("▁a") in first.encode("ab")
    assert first.decode(first.encode("ab", after_control=True)) == "ab"
    odd = first.encode("a\ufdefb", after_control=True)
    assert max(odd) < first.vocab_size and first.decode(odd) == "a\ufdefb"
