"""CPU microseconds of the server for one streamed token: `python -m tests.server.measure_sse [steps a second]`.

The model is a stand-in that costs next to nothing and wakes 32 streams a step as AsyncLLM does, so what is measured is
sockets, uvicorn, the application and the event loop. The client is another process.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from octavo.config.server import ServerConfig
from octavo.types import Completion, FinishReason, RequestOutput, SamplingParams
from tests.fakes import FakeAsyncLLM
from tests.server.live import post

STREAMS, TOKENS = 32, 400


class Steps(FakeAsyncLLM):
    """All streams get a token every step."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.waiting: set[asyncio.Event] = set()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1 / self.rate if self.rate else 0)
            for event in self.waiting:
                event.set()

    async def generate(self, prompt: Any, params: SamplingParams, **_: Any) -> AsyncIterator[RequestOutput]:
        news = asyncio.Event()
        self.waiting.add(news)
        try:
            for step in range(TOKENS):
                await news.wait()
                news.clear()
                finish = FinishReason.LENGTH if step + 1 == TOKENS else None
                choice = Completion(0, "", [], finish, None, None, " token", [5])
                yield RequestOutput("x", None, [1], [choice], finish is not None)
        finally:
            self.waiting.discard(news)


def serve(rate: float) -> None:
    from octavo.server.run import run

    async def start() -> Steps:
        llm = Steps(rate)
        llm.task = asyncio.create_task(llm.run())
        return llm

    run(start, ServerConfig(port=0), on_ready=lambda line: print(line, flush=True))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([usage.ru_utime, usage.ru_stime]), flush=True)


async def one(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": TOKENS}
    writer.write(post("/v1/completions", data))
    events = 0
    while part := await reader.read(1 << 16):
        events += part.count(b"data: {")
    writer.close()
    return events - 1


async def load(port: int, rounds: int) -> int:
    return sum([sum(await asyncio.gather(*(one(port) for _ in range(STREAMS)))) for _ in range(rounds)])


def measure(rate: float, rounds: int) -> tuple[int, float, float]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.measure_sse", "serve", str(rate)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().split("http://")[1].split()[0].rsplit(":", 1)[1])
    begin = time.perf_counter()
    events = asyncio.run(load(port, rounds)) if rounds else 0
    wall = time.perf_counter() - begin
    process.terminate()
    cpu = sum(json.loads(process.stdout.read()))
    return events, cpu, wall


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(float(sys.argv[2]))
        return
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    _, idle, _ = measure(rate or 1000.0, 0)
    events, cpu, wall = measure(rate, 4)
    print(
        f"{events} events in {wall:.1f} s ({events / wall:.0f}/s): {(cpu - idle) / events * 1e6:.1f} us of CPU an event"
    )


if __name__ == "__main__":
    main()
