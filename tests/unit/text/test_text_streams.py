"""Streams of text: detokenizing (R21) and stop strings (R20), for every way of cutting the stream."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.detokenize import Detokenizer
from octavo.text.stop import StopChecker
from octavo.text.tokenizer import Tokenizer

HARD = ["👩‍👩‍👧‍👦 🏳️‍🌈", "日本語 한국어", "naïve cafe\u0301", "hello ab 12\r\n\t", "ما هي", "\ufffd", "\0"]


def stream(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.add([i]) for i in ids), detokenizer.finish()]


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("name", ["tiny", "metaspace", "smol"])
def test_no_replacement_characters(text: str, name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == tokenizer.decode(ids) == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_deltas_add_up_for_any_ids(tiny: Tokenizer, metaspace: Tokenizer, data: st.DataObject) -> None:
    tokenizer = data.draw(st.sampled_from([tiny, metaspace]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    skip = data.draw(st.booleans())
    cut = data.draw(st.integers(0, len(ids)))
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer, ids, skip=skip)) == whole
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    assert detokenizer.add(ids[:cut]) + detokenizer.add(ids[cut:]) + detokenizer.finish() == whole


def test_an_answer_continues_its_prompt(metaspace: Tokenizer) -> None:
    """▁a after a prompt is a space and an a; at the start of a text the space is the tokenizer's own."""
    prompt, whole = metaspace.encode("ab"), metaspace.encode("ab a é")
    assert whole[: len(prompt)] == prompt
    for cut in range(len(prompt), len(whole)):
        detokenizer = Detokenizer(metaspace, continues=True)
        text = detokenizer.add(whole[len(prompt) : cut]) + detokenizer.add(whole[cut:]) + detokenizer.finish()
        assert metaspace.decode(prompt) + text == "ab a é"


def test_broken_bytes_show_once_they_are_certain(tiny: Tokenizer) -> None:
    euro = [tiny.encode("€")[i] for i in (0, 1)]  # two of three bytes
    assert stream(tiny, euro) == ["", "", "\ufffd"]
    assert "".join(stream(tiny, [*euro, *tiny.encode("a")])) == "\ufffda"


def test_cost_does_not_grow(tiny: Tokenizer) -> None:
    ids = tiny.encode("hello ab 🏳️‍🌈 ") * 4000
    detokenizer = Detokenizer(tiny)
    start = time.perf_counter()
    first = sum(len(detokenizer.add([i])) for i in ids[: len(ids) // 2])
    middle = time.perf_counter()
    second = sum(len(detokenizer.add([i])) for i in ids[len(ids) // 2 :])
    assert first == second and time.perf_counter() - middle < 5 * (middle - start) + 0.2


def test_special_tokens_are_skipped_or_shown(tiny: Tokenizer) -> None:
    ids = tiny.encode("hello<|im_end|>ab", parse_special=True)
    assert "".join(stream(tiny, ids)) == "helloab"
    assert "".join(stream(tiny, ids, skip=False)) == "hello<|im_end|>ab"


def cut_everywhere(text: str) -> list[list[str]]:
    """All ways of cutting a short text into pieces."""
    ways = []
    for borders in itertools.product((False, True), repeat=max(len(text) - 1, 0)):
        pieces = [text[:1]]
        for char, border in zip(text[1:], borders, strict=True):
            if border:
                pieces.append(char)
            else:
                pieces[-1] += char
        ways.append(pieces)
    return ways


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    checker = StopChecker(stops, include=include)
    out = ""
    for piece in pieces:
        text, hit = checker.add(piece)
        out += text
        if hit is not None:
            assert checker.add("more") == ("", hit) and checker.flush() == ""
            return out, hit
    return out + checker.flush(), None


def expected(text: str, stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """By definition: the first end at which a stop string is complete, the longest there."""
    for end in range(len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            hit = max(hits, key=len)
            return text[: end if include else end - len(hit)], hit
    return text, None


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("ab STOP cd", ["STOP"]),
        ("aaab", ["aab"]),
        ("abcabcabd", ["abcabd"]),
        ("xabcdx", ["abcd", "bc"]),
        ("xbcdy", ["d", "bcd", "cd"]),
        ("STO", ["STOP"]),
        ("no stop", ["zzz"]),
        ("aaaa", ["a"]),
        ("👩‍👩‍👧!", ["👧!"]),
        ("", ["x"]),
        ("anything", []),
    ],
)
def test_every_cut_gives_the_same(text: str, stops: list[str], include: bool) -> None:
    want = expected(text, stops, include=include)
    assert all(run(pieces, stops, include=include) == want for pieces in cut_everywhere(text))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("ab.", max_size=5), max_size=8),
    st.lists(st.text("ab.", min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_stops_at_random(pieces: list[str], stops: list[str], include: bool) -> None:
    assert run(pieces, stops, include=include) == expected("".join(pieces), stops, include=include)


def test_only_a_possible_start_is_held_back() -> None:
    checker = StopChecker(["STOP"])
    assert checker.add("hello") == ("hello", None)
    assert checker.add(" S") == (" ", None)
    assert checker.add("T") == ("", None)
    assert checker.add("x") == ("STx", None)
    assert checker.add("ST") == ("", None)
    assert checker.flush() == "ST"


def test_long_stops_stay_linear() -> None:
    checker = StopChecker(["a" * 255 + "b"] * 16)
    start = time.perf_counter()
    out = "".join(checker.add("a" * 10)[0] for _ in range(2000)) + checker.flush()
    assert out == "a" * 20_000 and time.perf_counter() - start < 2


def test_detokenizer_and_stops_together(smol: Tokenizer) -> None:
    """A stop string over token borders, inside a stream that also splits characters."""
    ids = smol.encode("Hello 🏳️‍🌈 world.\n\nUser: next")
    for stop in ("\n\nUser:", "🌈 w", "next", "r: n", "zz"):
        detokenizer, checker, out, hit = Detokenizer(smol), StopChecker([stop]), "", None
        for token in ids:
            text, hit = checker.add(detokenizer.add([token]))
            out += text
            if hit:
                break
        else:
            out += checker.add(detokenizer.finish())[0] + checker.flush()
        assert out == smol.decode(ids).split(stop)[0] and (hit == stop or stop == "zz")
