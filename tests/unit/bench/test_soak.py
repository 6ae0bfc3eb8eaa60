"""The soak's arithmetic, its mixture of requests, and that it notices what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

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
        return Counter(soak.kind_of(number)[0] for number in range(soak.QUICK))

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


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
DONE = b"data: [DONE]\n\n"


def answer(body: dict[str, Any]) -> bytes:
    """The whole of a stream but its end."""
    usage = {"completion_tokens": body["max_tokens"]}
    event = {"choices": [{"finish_reason": "length"}], "usage": usage}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


CLOSES: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "before the head": (lambda body: b"", "ServerDisconnectedError: "),
    "in the body": (
        lambda body: HEAD + b"Content-Length: 9999\r\n\r\n" + answer(body),
        "ClientPayloadError: ",
    ),
    "before [DONE]": (lambda body: HEAD + b"\r\n" + answer(body), "Wrong: the stream ended without [DONE]"),
    "when it is done": (lambda body: HEAD + b"\r\n" + answer(body) + DONE, ""),
}
"""When the stand-in closes the connection -> what it has sent by then, and why the request is lost."""


@pytest.mark.parametrize("when", CLOSES)
@pytest.mark.parametrize("kind", ["stream", "left"])
def test_a_lost_connection_is_a_lost_request_and_the_next_is_sent(when: str, kind: str) -> None:
    pytest.importorskip("aiohttp")
    from octavo.bench.client import session

    async def stand_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        (length,) = (line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length"))
        body = json.loads(await reader.readexactly(int(length)))
        writer.write(CLOSES[when][0](body))
        writer.close()

    async def send() -> soak.Soak:
        server = await asyncio.start_server(stand_in, "127.0.0.1", 0)
        async with server, session(timeout=5.0) as http:
            found = soak.Soak(http, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            for number in numbers:
                await found.one(number)
        return found

    numbers = [number for number in range(200) if soak.kind_of(number)[0] == kind][:8]
    found = asyncio.run(send())
    assert found.kinds == {kind: len(numbers)}
    assert found.ends.total() + len(found.wrong) == len(numbers)
    reason = CLOSES[when][1]
    if kind == "stream":
        expected = [f"request {number} (stream): {reason}" for number in numbers] if reason else []
        assert [text[: len(line)] for text, line in zip(found.wrong, expected, strict=True)] == expected
    else:  # some leave in time
        reason = reason or "Wrong: the stream ended before its client left"
        assert any(reason in text for text in found.wrong), found.wrong


def made_up(*, ends: dict[str, int], wrong: list[str] | None = None, kinds: int = len(soak.KINDS)) -> soak.Soak:
    session: Any = None
    names = list(soak.KINDS)[:kinds]
    return soak.Soak(session, "", Counter(ends), Counter(dict.fromkeys(names, 2)), wrong or [])


def test_a_lost_request_or_a_missing_kind_is_a_missed_row() -> None:
    def row(found: soak.Soak) -> tuple[str, str]:
        (row,) = soak._accounts(found, 14, 1.0)
        return row.status, row.value

    all_of_them = {"answered": 10, "left": 3, "refused": 1}
    assert row(made_up(ends=all_of_them)) == ("passed", "14")
    assert row(made_up(ends=all_of_them | {"answered": 9})) == ("missed", "13")
    assert row(made_up(ends=all_of_them, kinds=6)) == ("missed", "14")
    lost = made_up(ends=all_of_them | {"left": 2}, wrong=["request 4 (left): ServerDisconnectedError: x"])
    (missed,) = soak._accounts(lost, 14, 1.0)
    assert missed.status == "missed" and missed.note.endswith("; request 4 (left): ServerDisconnectedError: x")


def test_what_is_left_over_or_miscounted_is_a_missed_row() -> None:
    idle = {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "kv_cache_usage_perc": 0.0,
        "kv_cache_waste_perc": 0.1,
        "num_preemptions_total": 5.0,
        "e2e_request_latency_seconds_count": 7.0,
    }
    found = made_up(ends={"answered": 10, "left": 3, "refused": 1})

    def statuses(*, files: int = 0, **counters: float) -> list[str]:
        after = idle | {"e2e_request_latency_seconds_count": 17.0, "num_preemptions_total": 8.0} | counters
        rows = list(soak._left_over(idle, after, files, found))
        assert rows[0].note == "3 preemptions"
        return [row.status for row in rows]

    assert statuses() == statuses(e2e_request_latency_seconds_count=20.0) == statuses(files=-1) == ["passed"] * 3
    for left in ({"num_requests_running": 1.0}, {"num_requests_waiting": 1.0}, {"kv_cache_usage_perc": 0.01}):
        assert statuses(**left) == ["missed", "passed", "passed"]
    assert statuses(files=1) == ["missed", "passed", "passed"]
    for ends in (16.0, 21.0):
        assert statuses(e2e_request_latency_seconds_count=ends) == ["passed", "missed", "passed"]
