"""A tiny OpenAI port for OpenVINO GenAI's ContinuousBatchingPipeline: POST /v1/completions with token ids, streamed.

    PYTHON_WITH_OPENVINO_GENAI openvino_server.py MODEL.gguf --port 8000 --threads 2

Runs in the rival's own environment: only the standard library and its package. It sends a token's id as its text and
does no tokenising, so it does less than a server would.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

TOKENS_A_STEP, STREAMS, CACHE_GB = 512, 32, 4
Tokens = list[tuple[int, bool]]


class Pipeline:
    """Steps in a thread of its own as long as a request is open."""

    def __init__(self, path: str, threads: int) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = CACHE_GB, STREAMS
        scheduler.max_num_batched_tokens = TOKENS_A_STEP
        scheduler.dynamic_split_fuse = scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 1}
        self._genai = genai
        self._pipe = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self._ids = itertools.count()
        self._open: dict[int, tuple[Any, Callable[[Tokens], None]]] = {}
        self._work = threading.Condition()
        threading.Thread(target=self._steps, daemon=True).start()

    def ask(self, prompt: list[int], out: int, deliver: Callable[[Tokens], None]) -> None:
        """Queue a prompt; `deliver` gets (token, is the last) from the stepping thread."""
        handle = self._add(prompt, self._greedy(out))
        with self._work:
            self._open[next(self._ids)] = (handle, deliver)
            self._work.notify()

    def _greedy(self, out: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = out, True, False
        return config

    def _add(self, prompt: list[int], config: Any) -> Any:
        import numpy as np
        import openvino

        return self._pipe.add_request(next(self._ids), openvino.Tensor(np.array([prompt], dtype=np.int64)), config)

    def _steps(self) -> None:
        running = self._genai.GenerationStatus.RUNNING
        while True:
            with self._work:
                self._work.wait_for(lambda: self._open)
                held = list(self._open.items())
            self._pipe.step()
            for key, (handle, deliver) in held:
                tokens = next(iter(handle.read().values())).generated_ids if handle.can_read() else []
                ended = handle.get_status() != running and not handle.can_read()
                if tokens or ended:
                    deliver([(int(t), False) for t in tokens] + ([(-1, True)] if ended else []))
                if ended:
                    with self._work:
                        del self._open[key]


async def answer(pipeline: Pipeline, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Stream one completion as server-sent events, or send it whole where `stream` is not set."""
    prompt, out = list(body["prompt"]), int(body.get("max_tokens", 16))
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Tokens]()

    def deliver(tokens: Tokens) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, tokens)

    pipeline.ask(prompt, out, deliver)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 0}
    stream = bool(body.get("stream"))
    if stream:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    texts: list[str] = []
    ended = False
    while not ended:
        for token, ended in await queue.get():
            if not ended:
                usage["completion_tokens"] += 1
                texts.append(f" {token}")
                if stream:
                    writer.write(b'data: {"choices": [{"index": 0, "text": " %d"}]}\n\n' % token)
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


async def connected(pipeline: Pipeline, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request a connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        lengths = [int(h.partition(":")[2]) for h in head if h.lower().startswith("content-length:")]
        body = await reader.readexactly(lengths[0] if lengths else 0)
        if head[0].startswith("POST /v1/completions "):
            await answer(pipeline, json.loads(body), writer)
        else:
            respond(writer, 404, {"error": {"message": "only POST /v1/completions"}})
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def serve(pipeline: Pipeline, port: int) -> None:
    server = await asyncio.start_server(lambda r, w: connected(pipeline, r, w), "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description="A tiny OpenAI port for OpenVINO GenAI.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    asyncio.run(serve(Pipeline(args.model, args.threads), args.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
