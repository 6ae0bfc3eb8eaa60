"""A tiny OpenAI port for OpenVINO GenAI's ContinuousBatchingPipeline: POST /v1/completions with token ids, streamed.

    PYTHON_WITH_OPENVINO_GENAI openvino_server.py MODEL.gguf --port 8000 --threads 2

Runs in the rival's own environment: only the standard library and its package. It sends a token's id as its text and
does no tokenising, so it does less than a server would. The port has a process of its own: the pipeline's step() keeps
Python's lock, and beside it in one process an event loop would send a single write between two steps.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any, Protocol

TOKENS_A_STEP, STREAMS, CACHE_GB = 512, 32, 4
Found = tuple[int, list[int], bool]
"""Request, its new tokens, whether it ended."""


class Steps(Protocol):
    """Generates for all open requests, a step at a time."""

    open: dict[int, Any]

    def add(self, key: int, prompt: list[int], out: int) -> None:
        """Open a request for exactly `out` greedy tokens."""

    def step(self) -> list[Found]:
        """One step of all; a request that ended is open no more."""


class Pipeline:
    """OpenVINO's own."""

    def __init__(self, path: str, threads: int) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, STREAMS
        scheduler.max_num_batched_tokens = TOKENS_A_STEP
        scheduler.dynamic_split_fuse = scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 1}
        self._genai = genai
        self._pipe = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self.open: dict[int, Any] = {}

    def add(self, key: int, prompt: list[int], out: int) -> None:
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = out, True, False
        tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self.open[key] = self._pipe.add_request(key, tokens, config)

    def step(self) -> list[Found]:
        running = self._genai.GenerationStatus.RUNNING
        self._pipe.step()
        found: list[Found] = []
        for key, handle in list(self.open.items()):
            tokens = next(iter(handle.read().values())).generated_ids if handle.can_read() else []
            ended = handle.get_status() != running and not handle.can_read()
            if tokens or ended:
                found.append((key, [int(t) for t in tokens], ended))
            if ended:
                del self.open[key]
        return found


def generate(pipeline: Steps, port: Connection) -> None:
    """Requests from the port's process, what each step found back to it, until it is gone."""
    port.send(None)  # ready
    try:
        while True:
            while not pipeline.open or port.poll():
                pipeline.add(*port.recv())
            if found := pipeline.step():
                port.send(found)
    except (EOFError, ConnectionError):
        return


class Desk:
    """The port's side: which answer waits for which request."""

    def __init__(self, engine: Connection) -> None:
        self._engine, self._keys = engine, itertools.count()
        self._waiting: dict[int, asyncio.Queue[Found]] = {}

    def listen(self) -> None:
        """From within the event loop."""
        asyncio.get_running_loop().add_reader(self._engine.fileno(), self._deliver)

    def ask(self, prompt: list[int], out: int) -> asyncio.Queue[Found]:
        """What is found for it, step by step."""
        key, queue = next(self._keys), asyncio.Queue[Found]()
        self._waiting[key] = queue
        self._engine.send((key, prompt, out))
        return queue

    def _deliver(self) -> None:
        try:
            found: list[Found] = self._engine.recv()
        except (EOFError, ConnectionError):
            os._exit(1)  # the engine's process says why
        for one in found:
            key, _, ended = one
            self._waiting[key].put_nowait(one)
            if ended:
                del self._waiting[key]


async def answer(desk: Desk, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Stream one completion as server-sent events, or send it whole where `stream` is not set."""
    prompt = list(body["prompt"])
    queue = desk.ask(prompt, int(body.get("max_tokens", 16)))
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 0}
    stream = bool(body.get("stream"))
    if stream:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    texts: list[str] = []
    ended = False
    while not ended:
        _, tokens, ended = await queue.get()
        usage["completion_tokens"] += len(tokens)
        texts += [f" {token}" for token in tokens]
        if stream:
            event = b'data: {"choices": [{"index": 0, "text": " %d"}]}\n\n'
            writer.write(b"".join(event % token for token in tokens))
            await writer.drain()
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}
    if stream:
        writer.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    else:
        last["choices"] = [{"index": 0, "text": "".join(texts), "finish_reason": "length"}]
        respond(writer, 200, last)


def respond(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)


async def connected(desk: Desk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request a connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lengths = [int(h.partition(":")[2]) for h in head if h.lower().startswith("content-length:")]
        body = await reader.readexactly(lengths[0] if lengths else 0)
        if head[0].startswith("POST /v1/completions "):
            await answer(desk, json.loads(body), writer)
        else:
            respond(writer, 404, {"error": {"message": "only POST /v1/completions"}})
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def serve(desk: Desk, port: int) -> None:
    desk.listen()
    server = await asyncio.start_server(lambda r, w: connected(desk, r, w), "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


def open_port(engine: Connection, others: Connection, port: int) -> None:
    """The port's process; it listens once the model is read."""
    others.close()  # else the engine's end would not be seen
    try:
        engine.recv()
    except EOFError:
        return
    asyncio.run(serve(Desk(engine), port))


def main() -> int:
    parser = argparse.ArgumentParser(description="A tiny OpenAI port for OpenVINO GenAI.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")  # before the package is read: no thread is there yet
    fork.Process(target=open_port, args=(theirs, ours, args.port), daemon=True).start()
    theirs.close()
    generate(Pipeline(args.model, args.threads), ours)
    return 0


if __name__ == "__main__":
    sys.exit(main())
