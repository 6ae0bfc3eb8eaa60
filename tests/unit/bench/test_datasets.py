"""Data sets: lengths, sharing, files, seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bench.datasets import Ask, Ids, as_text, file_asks, prefix_asks, random_asks
from octavo.errors import ConfigError


def test_random_lengths_and_ids() -> None:
    asks = random_asks(Ids(0, 10, 500, without=[11]), 300, input_len=20, output_len=8, range_ratio=0.5)
    sizes = {len(a.prompt) for a in asks}
    assert (min(sizes), max(sizes)) == (10, 30)
    assert {a.out for a in asks} == set(range(4, 13))
    ids = {i for a in asks for i in a.prompt}
    assert ids <= set(range(10, 500)) - {11}
    assert len({tuple(a.prompt) for a in asks}) == 300


def test_the_seed_decides() -> None:
    def made(seed: object) -> list[Ask]:
        return random_asks(Ids(seed), 3, input_len=5, output_len=2)

    assert made("1.0") == made("1.0")
    assert made("1.0") != made("1.1")


def test_a_random_prefix_is_shared() -> None:
    asks = random_asks(Ids(0), 4, input_len=5, output_len=2, prefix_len=7)
    assert len({tuple(a.prompt[:7]) for a in asks}) == 1
    assert len({tuple(a.prompt[7:]) for a in asks}) == 4
    assert {len(a.prompt) for a in asks} == {12}


def test_prefix_repetition() -> None:
    asks = prefix_asks(Ids(0), 12, prefix_len=16, suffix_len=4, num_prefixes=3, output_len=9)
    heads = [tuple(a.prompt[:16]) for a in asks]
    assert sorted(heads.count(h) for h in set(heads)) == [4, 4, 4]
    assert len({tuple(a.prompt[16:]) for a in asks}) == 12
    assert heads != sorted(heads, key=heads.index)  # shuffled: prefixes do not come one after the other
    assert {(len(a.prompt), a.out) for a in asks} == {(20, 9)}


def test_files(tmp_path: Path) -> None:
    plain = tmp_path / "lines.txt"
    plain.write_text("one\n\n two\n")
    assert file_asks(str(plain), None, output_len=7) == [Ask("one", 7), Ask(" two", 7)]
    assert [a.prompt for a in file_asks(str(plain), 3, output_len=7)] == ["one", " two", "one"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"prompt": "a", "max_tokens": 3}\n{"prompt": [1, 2]}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "output_tokens": 4}\n'
    )
    asks = file_asks(str(rows), None, output_len=7)
    assert [(a.out, a.is_chat) for a in asks] == [(3, False), (7, False), (4, True)]
    assert asks[1].prompt == [1, 2]


@pytest.mark.parametrize(
    "line", ["{", '{"text": "a"}', "[]", '{"prompt": ""}', '{"prompt": "a", "max_tokens": 0}', '{"prompt": [1, "x"]}']
)
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: "):
        file_asks(str(path), None, output_len=1)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        file_asks(str(tmp_path / "no"), None, output_len=1)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        file_asks(str(tmp_path / "empty"), None, output_len=1)


def test_ids_as_words_keep_what_is_shared() -> None:
    one, two = as_text([Ask([1000, 2000, 3000, 4000, 5000, 6000], 3), Ask([1000, 2000, 3000, 4000, 7, 6000], 3)])
    assert isinstance(one.prompt, str)
    assert isinstance(two.prompt, str)
    assert one.prompt.split()[:2] == two.prompt.split()[:2]
    assert one.prompt != two.prompt
    assert list(as_text([Ask("text", 1)])) == [Ask("text", 1)]
