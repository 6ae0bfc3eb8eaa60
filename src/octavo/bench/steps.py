"""Whole steps, split: ops, gaps between ops, sampling, Python, front end (needs NumPy).

    schedule   fill    forward: op op op …    sample   results   update   encode │ decode  detokenise  events
    └───────────────────────── engine process ───────────────────────────────────┘└── front end, another core ──┘

In service the front end runs beside the engine; here all of it runs in one thread, one after the other, so that each
part has its own time and a step is the sum of the engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from octavo.bench.datasets import Ids
from octavo.config.args import EngineArgs
from octavo.engine.build import build_engine, open_front
from octavo.engine.messages import Outputs, decode_up, encode
from octavo.errors import OctavoError
from octavo.llm.front import ModelFront
from octavo.llm.intake import Intake
from octavo.llm.outputs import OutputProcessor, RequestState, publish
from octavo.obs.metrics import Metrics
from octavo.server.openai.sse import EventWriter, StreamHead
from octavo.types import SamplingParams

ENGINE = ("schedule", "fill", "ops", "gaps", "sample", "results", "update", "encode")
"""Parts of a step, in their order."""
FRONT = ("decode", "detokenise", "events")
GROUPS = 8
"""KV groups that a model may have and still find room for every sequence."""
MEANING = {
    "schedule": "plan the step",
    "fill": "plan -> batch fields",
    "ops": "inside kernels (waiting for the team included)",
    "gaps": "forward but for its ops: batch fields, attention's plan, between ops",
    "sample": "sampling",
    "results": "sampled ids -> result",
    "update": "result -> sequences",
    "encode": "message to the front end",
    "decode": "message read",
    "detokenise": "ids -> text, stop strings, metrics",
    "events": "server-sent events",
}


class Split(Struct, frozen=True):
    """Milliseconds of one step, the mean over all measured."""

    streams: int
    tokens: int
    """Of a step, on average."""
    context: int
    """Positions of a sequence at the middle of the measurement."""
    steps: int
    engine: dict[str, float]
    front: dict[str, float]
    away: float
    """Milliseconds of forward in which the engine's thread did not run: the system gave its CPU to something else."""

    @property
    def ms(self) -> float:
        return sum(self.engine.values())

    @property
    def in_kernels(self) -> float:
        """Share of the engine's step that is spent in ops."""
        return self.engine["ops"] / self.ms

    @property
    def python(self) -> float:
        """Share of schedule, fill, sampling, results, update and encode."""
        return sum(v for k, v in self.engine.items() if k not in ("ops", "gaps")) / self.ms


class Clock:
    """Adds up seconds by name; `lap` gives what passed since the last lap to a name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*ENGINE, *FRONT), 0.0)
        self._last = time.perf_counter()

    def start(self) -> None:
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] += now - self._last
        self._last = now


class Bench:
    """An engine and a front end in this process, with a clock on every part."""

    def __init__(self, args: EngineArgs) -> None:
        """Load the model. Raises ConfigError, DoesNotFit, ModelError, FetchError."""
        args, front = open_front(args)
        self.front = ModelFront.build(front, args)
        self._engine = build_engine(args)
        self.facts, self.core = self._engine.facts, self._engine.core
        executor: Any = self.core.executor
        self._exe: Any = getattr(getattr(executor, "runner", None), "backend", None)
        if getattr(self._exe, "exe", None) is None:
            self.core.close()
            raise OctavoError("bench step: this executor has no profile, allowed: --executor native")
        self.clock = Clock()
        self._forward_cpu = 0.0
        self._wrap("forward", "fill")
        self._wrap("sample", "")
        metrics = Metrics(model=self._engine.config.model_names[0])
        self._outputs = OutputProcessor(tokenizer=self.front.tokenizer, metrics=metrics)
        self._intake = Intake(tokenizer=self.front.tokenizer, facts=self.facts, config=self._engine.config, seed=0)
        self._head = StreamHead("text", id="cmpl-bench", created=0, model="m", usage=False)
        self._writers: dict[str, EventWriter] = {}
        self._open: list[RequestState] = []

    def close(self) -> None:
        self.core.close()

    def _wrap(self, name: str, before: str) -> None:
        """Put the clock around a call of the backend; what ran since the last lap goes to `before`."""
        call: Callable[..., None] = getattr(self._exe, name)

        def timed(*words: object) -> None:
            if before:
                self.clock.lap(before)
            cpu = time.thread_time()
            call(*words)
            if name == "forward":
                self._forward_cpu += time.thread_time() - cpu
            self.clock.lap(name if name == "sample" else "gaps")

        setattr(self._exe, name, timed)

    # -- one measurement ----------------------------------------------------------------------------------------------
    def decode(self, streams: int, *, prompt: int, steps: int, warm: int = 4) -> Split:
        """`steps` steps in which `streams` sequences decode one token each, after `warm` unmeasured ones."""
        self._add(streams, prompt, prompt_of=f"{streams}", out=None)  # none may end before the last is measured
        while any(not s.seqs[0].token_ids for s in self._open):
            self.step()
        for _ in range(warm):
            self.step()
        return self._measure(streams, context=prompt + warm + steps // 2, stop=lambda done: done == steps)

    def prefill(self, prompt: int) -> Split:
        """The steps of one prompt up to its first token."""
        self._add(1, prompt, prompt_of="warm", out=1)
        while self.core.has_work:
            self.step()
        self._open.clear()
        self._add(1, prompt, prompt_of="prefill", out=2)
        return self._measure(1, context=prompt // 2, stop=lambda done: bool(self._open[0].seqs[0].token_ids))

    def _add(self, streams: int, prompt: int, *, prompt_of: str, out: int | None) -> None:
        special = tuple(self.front.tokenizer.special_ids)
        ids = Ids(prompt_of, min(1000, self.facts.vocab_size // 2), self.facts.vocab_size, without=special)
        params = SamplingParams(max_tokens=out, temperature=0.0, ignore_eos=True)
        for _ in range(streams):
            prepared = self._intake.prepare(ids.draw(prompt), params)
            state = self._outputs.open(prepared)
            self._open.append(state)
            self._writers[state.request_id] = EventWriter(self._head, 0)
            for request in prepared.requests:
                refused = self.core.add(request)
                if refused is not None:
                    raise refused.error()

    def _measure(self, streams: int, *, context: int, stop: Callable[[int], bool]) -> Split:
        self.clock = Clock()
        self._forward_cpu = 0.0
        self._exe.exe.profile(True)
        done = tokens = 0
        while not stop(done):
            tokens += self.step()
            done += 1
        ops = sum(seconds for _, seconds, _ in self._exe.exe.timings())
        self._exe.exe.profile(False)
        self._finish()
        seconds = self.clock.seconds
        wall = seconds["gaps"]  # of forward, until here
        seconds["ops"], seconds["gaps"] = ops, max(0.0, wall - ops)
        away = 1e3 * max(0.0, wall - self._forward_cpu) / done
        each = {name: 1e3 * s / done for name, s in seconds.items()}
        engine, front = {n: each[n] for n in ENGINE}, {n: each[n] for n in FRONT}
        return Split(streams, tokens // done, context, done, engine, front, away)

    def _finish(self) -> None:
        """Drop what is open, in front end and engine."""
        for state in self._open:
            for seq_id in self._outputs.abort(state):
                self.core.abort(seq_id)
        self._open.clear()
        self._writers.clear()

    def step(self) -> int:
        """One step of the loop of engine/core.py and of the front end, with laps. Returns its tokens."""
        core, clock = self.core, self.clock
        clock.start()
        plan = core.scheduler.schedule()
        clock.lap("schedule")
        if plan is None:
            raise OctavoError("bench step: the engine has nothing to do; fewer streams or more KV blocks are needed")
        core.executor.submit(plan)
        result = core.executor.collect()
        clock.lap("results")
        if result.error is not None:
            raise OctavoError(f"a step failed: {result.error}")
        outputs = core.scheduler.update(result)
        clock.lap("update")
        data = encode(Outputs(outputs, core.stats(), [], [plan.num_tokens]))
        clock.lap("encode")
        self._receive(data)
        return plan.num_tokens

    def _receive(self, data: bytes) -> None:
        """What the front end does with a message: every open stream takes its news and writes an event."""
        clock = self.clock
        message = decode_up(data)
        assert isinstance(message, Outputs)
        clock.lap("decode")
        publish(self._outputs.metrics, message)
        self._outputs.handle(message)
        clock.lap("detokenise")
        for state in self._open:
            delta = state.take().outputs[0].delta
            self._writers[state.request_id].event(delta)
        clock.lap("events")


def split(args: EngineArgs, *, streams: Sequence[int], prompt: int, steps: int, prefill: int) -> list[Split]:
    """Decode with each number of streams, then the prefill of one prompt (0: none)."""
    most = max(streams, default=1)
    # The first sequence decodes while the last one's prompt is still being computed.
    longest = max(prompt + steps + most * prompt // args.step_tokens + 32, prefill + 16)
    args = msgspec.structs.replace(
        args,
        max_num_seqs=max(most, 1),
        max_num_batched_tokens=args.max_num_batched_tokens or max(256, most),
        max_model_len=args.max_model_len or longest,
        num_kv_blocks=args.num_kv_blocks or 2 + GROUPS * (most + 1) * (-(-longest // args.block_size) + 1),
    )
    bench = Bench(args)
    try:
        found = [bench.decode(n, prompt=prompt, steps=steps) for n in streams]
        return found + ([bench.prefill(prefill)] if prefill else [])
    finally:
        bench.close()
