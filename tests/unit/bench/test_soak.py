"""The soak's arithmetic, its mixture of requests, and that it notices what is wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

pytest.importorskip("aiohttp")

from bench import soak


def looks(front: list[float], engine: list[float], count: int) -> list[soak.Look]:
    step = count // len(front)
    return [soak.Look(step * (i + 1), f, e) for i, (f, e) in enumerate(zip(front, engine, strict=True))]


def statuses(front: list[float], engine: list[float], count: int = 10_000) -> list[str]:
    return [row.status for row in soak.memory_rows(looks(front, engine, count), count)]


def test_bursts_pass_and_leaks_do_not() -> None:
    flat, bursts = [100.0] * 100, [100.0 + 15 * (i % 3 == 0) for i in range(100)]
    assert statuses(bursts, flat) == ["passed"] * 3
    slow = [100.0 + i / 5 for i in range(100)]
    assert statuses(slow, flat) == ["missed", "passed", "missed"]
    assert statuses(flat, slow) == ["passed", "missed", "missed"]
    early = [50.0 + min(i, 40) for i in range(100)]
    assert statuses(early, flat) == ["passed", "passed", "missed"], "flat in the second half, but more than after 1,000"
    assert statuses(flat, flat, 1_500) == ["passed", "passed", "not run"]


def test_every_kind_is_among_a_few_hundred_and_is_the_same_again() -> None:
    def kinds() -> Counter[str]:
        weights = [weight for weight, _ in soak.KINDS.values()]
        return Counter(random.Random(i).choices(list(soak.KINDS), weights)[0] for i in range(soak.QUICK))

    assert kinds() == kinds()
    assert set(kinds()) == set(soak.KINDS)
    assert kinds()["long"] >= 5


def test_an_answer_that_is_cut_or_doubled_is_wrong() -> None:
    body = {"max_tokens": 5, "n": 2}
    soak._check(body, {"completion_tokens": 10}, ["length", "length"])
    for usage, ends in (
        ({"completion_tokens": 9}, ["length"] * 2),
        ({}, ["length"] * 2),
        ({"completion_tokens": 10}, ["length"]),
        ({"completion_tokens": 10}, ["length", "error"]),
    ):
        with pytest.raises(soak.Wrong):
            soak._check(body, usage, ends)
