"""R09: thousands of random requests of every kind on the real model; then memory is flat and nothing is left over."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bench.machine import open_files, own_pss_mib, tree
from bench.rows import Context, Row, at_most, holds, not_run, shown
from bench.serving import Server, free_port, serve
from octavo.errors import OctavoError

if TYPE_CHECKING:
    import aiohttp

SECTION = "Soak"
REQUESTS, QUICK = 10_000, 1_500
EARLY = 1_000
"""R09 compares memory after about so many requests with memory at the end."""
AT_ONCE = 32
TOLERANCE = 3.0
"""Percent by which memory may grow."""
SAMPLES = 100
"""Looks at memory, evenly over the requests."""
BLOCKS = 1025
"""So few that all of them are touched early, and cached prefixes are evicted."""

Ids = list[int]
Body = dict[str, Any]
End = Literal["answered", "left", "refused"]


class Wrong(Exception):
    """An answer that is not what its request must get."""


@dataclass(slots=True)
class Soak:
    """What was sent and what became of it."""

    session: aiohttp.ClientSession
    url: str
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Why a request counts as lost: number, kind, what came instead of its end."""

    async def one(self, number: int) -> None:
        """The request of that number: kind, prompt and options depend on it alone."""
        kind, dice = kind_of(number)
        self.kinds[kind] += 1
        try:
            self.ends[await KINDS[kind][1](self, dice)] += 1
        except Exception as error:  # whatever the server or the connection does: this one is lost, the others go on
            self.wrong.append(f"request {number} ({kind}): {type(error).__name__}: {error}"[:200])

    async def whole(self, path: str, body: Body) -> End:
        """Not streamed; as many tokens as were asked for, of each answer."""
        async with self.session.post(self.url + path, json=body) as response:
            got = await response.json()
            if response.status != 200:
                raise Wrong(f"HTTP {response.status}: {got}")
        _check(body, got["usage"], [choice["finish_reason"] for choice in got["choices"]])
        return "answered"

    async def stream(self, path: str, body: Body) -> End:
        """The same, streamed."""
        usage: Body = {}
        finished: list[str] = []
        async for event in self.events(path, body):
            usage = event.get("usage") or usage
            finished += [c["finish_reason"] for c in event["choices"] if c["finish_reason"]]
        _check(body, usage, finished)
        return "answered"

    async def events(self, path: str, body: Body) -> AsyncIterator[Body]:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        async with self.session.post(self.url + path, json=body) as response:
            if response.status != 200:
                raise Wrong(f"HTTP {response.status}: {await response.text()}")
            last = b""
            async for line in response.content:
                last = line.strip() or last
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise Wrong(str(event))
                    yield event
            if last != b"data: [DONE]":
                raise Wrong("the stream ended without [DONE]")

    async def refused(self, body: Body) -> End:
        async with self.session.post(self.url + COMPLETIONS, json=body) as response:
            if response.status != 400:
                raise Wrong(f"HTTP {response.status} instead of 400")
            await response.read()
        return "refused"


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def _check(body: Body, usage: Body, finished: list[str]) -> None:
    answers = body.get("n", 1)
    if usage.get("completion_tokens") != answers * body["max_tokens"] or finished != ["length"] * answers:
        raise Wrong(f"asked for {answers} x {body['max_tokens']} tokens, got {usage}, {finished}")


def _ids(dice: random.Random, low: int, high: int) -> Ids:
    """Some begin as others do, so that the prefix cache is hit."""
    count = dice.randint(low, high)
    shared = [2000 + i for i in range(min(32, count // 2))] if dice.random() < 0.3 else []
    return shared + [dice.randrange(1000, 45_000) for _ in range(count - len(shared))]


def _body(dice: random.Random, *, low: int = 4, high: int = 48, **more: Any) -> Body:
    out = dice.randint(1, 8)
    greedy: Body = {"temperature": 0, "ignore_eos": True, "model": "m", "max_tokens": out}
    return greedy | {"prompt": _ids(dice, low, high)} | more


def _sampled(dice: random.Random) -> Body:
    choices: Body = {
        "temperature": dice.uniform(0.2, 1.5),
        "top_p": dice.uniform(0.3, 1.0),
        "top_k": dice.randint(1, 50),
    }
    extra = dice.choice([{}, {"seed": dice.randrange(2**31)}, {"presence_penalty": 0.5}, {"logprobs": 3}, {"n": 2}])
    return choices | extra


def _chat(dice: random.Random) -> Body:
    words = dice.choices(("river", "stone", "über", "日本", "why?", "count", "🙂"), k=dice.randint(1, 12))
    body = _body(dice) | {"messages": [{"role": "user", "content": " ".join(words)}]}
    del body["prompt"]
    return body


async def _whole(soak: Soak, dice: random.Random) -> End:
    return await soak.whole(COMPLETIONS, _body(dice))


async def _stream(soak: Soak, dice: random.Random) -> End:
    return await soak.stream(COMPLETIONS, _body(dice))


async def _sample(soak: Soak, dice: random.Random) -> End:
    send = soak.stream if dice.random() < 0.5 else soak.whole
    return await send(COMPLETIONS, _body(dice, **_sampled(dice)))


async def _chats(soak: Soak, dice: random.Random) -> End:
    send = soak.stream if dice.random() < 0.5 else soak.whole
    return await send(CHAT, _chat(dice))


async def _long(soak: Soak, dice: random.Random) -> End:
    return await soak.stream(COMPLETIONS, _body(dice, low=400, high=1500))


async def _leave(soak: Soak, dice: random.Random) -> End:
    """Leaves while it waits, or after a few events."""
    body = _body(dice, high=200, max_tokens=200)
    if dice.random() < 0.5:
        try:
            async with asyncio.timeout(dice.uniform(0.001, 0.05)):
                await soak.stream(COMPLETIONS, body)
        except TimeoutError:
            return "left"
        raise Wrong("200 tokens came in 50 ms")
    events = soak.events(COMPLETIONS, body)
    for _ in range(dice.randint(1, 4)):
        if await anext(events, None) is None:
            raise Wrong("the stream ended before its client left")
    await events.aclose()
    return "left"


async def _refused(soak: Soak, dice: random.Random) -> End:
    wrong: Body = dice.choice([{"temperature": -1}, {"prompt": []}, {"no_such_field": 1}, {"prompt": [5] * 9_000}])
    return await soak.refused(_body(dice) | wrong)


KINDS: Mapping[str, tuple[float, Callable[[Soak, random.Random], Awaitable[End]]]] = {
    "whole": (20, _whole),
    "stream": (26, _stream),
    "sampled": (20, _sample),
    "chat": (16, _chats),
    "long": (1, _long),
    "left": (10, _leave),
    "refused": (7, _refused),
}
"""Kind -> share of the requests, and who sends one."""


def kind_of(number: int) -> tuple[str, random.Random]:
    """Of the request of that number; and the dice for the rest of it, which have rolled for the kind."""
    dice = random.Random(number)
    (kind,) = dice.choices(list(KINDS), [weight for weight, _ in KINDS.values()])
    return kind, dice


@dataclass(frozen=True, slots=True)
class Look:
    """Memory of the two halves, MiB, when so many requests were done."""

    done: int
    front: float
    engine: float


def soak(c: Context) -> Iterator[Row]:
    """AT_ONCE clients send until all are done; memory is looked at as they go."""
    try:
        from octavo.bench.client import session
    except OctavoError as error:
        yield not_run(SECTION, "random requests on the real model (R09)", "all answered", str(error))
        return
    count, port = QUICK if c.quick else REQUESTS, free_port()
    flags = ("--num-kv-blocks", str(BLOCKS), "--served-model-name", "m", "--port", str(port))

    async def send(server: Server, engine: int, looks: list[Look]) -> Soak:
        async with session(timeout=300.0) as http:
            found, numbers, done = Soak(http, server.url), iter(range(count)), 0

            async def work() -> None:
                nonlocal done
                for number in numbers:
                    await found.one(number)
                    done += 1
                    if done % max(1, count // SAMPLES) == 0:
                        looks.append(Look(done, own_pss_mib(server.pid), own_pss_mib(engine)))

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            return found

    with serve(c.octavo("serve", c.model, *flags), port=port, model="m") as server:
        (engine,) = tree(server.pid)[1:]
        files, before, began = open_files(server.pid), server.metrics(), time.monotonic()
        looks: list[Look] = []
        found = asyncio.run(send(server, engine, looks))
        seconds = time.monotonic() - began
        after = _settled(server, files)
        yield from _accounts(found, count, seconds)
        yield from _left_over(before, after, open_files(server.pid) - files, found)
    yield from memory_rows(looks, count)


def _settled(server: Server, files: int) -> dict[str, float]:
    """Metrics when what was left has been noticed, or after ten seconds."""
    end = time.monotonic() + 10
    while True:
        metrics = server.metrics()
        busy = metrics["num_requests_running"] + metrics["num_requests_waiting"] + metrics["kv_cache_usage_perc"]
        if (not busy and open_files(server.pid) <= files) or time.monotonic() > end:
            return metrics
        time.sleep(0.1)


def _accounts(found: Soak, count: int, seconds: float) -> Iterator[Row]:
    ended, kinds = sum(found.ends.values()), ", ".join(f"{n} {kind}" for kind, n in found.kinds.most_common())
    ok = ended == count and not found.wrong and len(found.kinds) == len(KINDS)
    note = f"{seconds:.0f} s, {AT_ONCE} at once: {kinds}" + "".join(f"; {text}" for text in found.wrong[:3])
    name = "random requests end as they must, none lost (R09)"
    yield holds(SECTION, name, ok, target=f"{count:,}", value=f"{ended:,}", note=note)


def _left_over(before: dict[str, float], after: dict[str, float], files: int, found: Soak) -> Iterator[Row]:
    """A client that left may have been answered before the server saw it."""
    running = after["num_requests_running"] + after["num_requests_waiting"]
    used = after["kv_cache_usage_perc"]
    ok = running == used == 0 and files <= 0
    value = f"{running:.0f}, {used:.1%}, {max(0, files)}"
    note = f"{after['num_preemptions_total'] - before['num_preemptions_total']:.0f} preemptions"
    yield holds(SECTION, "... open requests, KV blocks and files left", ok, target="0, 0, 0", value=value, note=note)
    ends = after["e2e_request_latency_seconds_count"] - before["e2e_request_latency_seconds_count"]
    low, high = found.ends["answered"], found.ends["answered"] + found.ends["left"]
    target = f"{low:,} to {high:,}"
    yield holds(SECTION, "... requests the server counts", low <= ends <= high, target=target, value=f"{ends:,.0f}")
    yield shown(SECTION, "... KV waste over time", f"{after['kv_cache_waste_perc']:.1%}")


def memory_rows(looks: list[Look], count: int) -> Iterator[Row]:
    """Growth of each half (PSS) over the second half of the requests, from its first third to its last; and R09's.

    The least of each span counts: what the allocator keeps of a burst comes and goes, a leak stays.
    """
    second = [look for look in looks if look.done > count // 2]
    third = max(1, len(second) // 3)
    for name, sizes in (("front half", [k.front for k in second]), ("engine", [k.engine for k in second])):
        first, last = min(sizes[:third]), min(sizes[-third:])
        title = f"memory of the {name} grows in the second half by"
        note = f"{last:.0f} MiB; {min(sizes):.0f} to {max(sizes):.0f}"
        yield at_most(SECTION, title, 100 * (last / first - 1), TOLERANCE, "%", note=note)
    title = f"memory after {count:,} requests, beside that after {EARLY:,}, is more by"
    if count < 5 * EARLY:
        yield not_run(SECTION, title, f"<= {TOLERANCE:g} %", f"{count:,} requests only")
        return
    early = min(k.front + k.engine for k in looks if EARLY // 2 < k.done <= 3 * EARLY // 2)
    last = min(k.front + k.engine for k in second[-third:])
    yield at_most(SECTION, title, 100 * (last / early - 1), TOLERANCE, "%", note=f"{last:.0f} MiB")
