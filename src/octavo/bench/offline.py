"""In process, without a server: whole batches through `LLM`, timed from outside."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from octavo.bench.datasets import Ask
from octavo.bench.metrics import percentile
from octavo.errors import OctavoError
from octavo.types import RequestOutput, SamplingParams

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)


class Generates(Protocol):
    """The part of `LLM` that is measured."""

    def generate(
        self,
        prompts: Sequence[list[int] | str],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]: ...

    def render_chat(self, messages: list[dict[str, object]]) -> list[int]: ...


class Throughput(Struct, frozen=True):
    """All requests at once, as `vllm bench throughput` names it; rates per second."""

    elapsed_time: float
    num_requests: int
    total_input_tokens: int
    total_output_tokens: int
    cached_tokens: int
    total_num_tokens: int
    requests_per_second: float
    tokens_per_second: float
    """Of prompts and answers together."""
    output_tokens_per_second: float


class Latency(Struct, frozen=True):
    """Seconds of a whole batch, from submission to its last token."""

    avg_latency: float
    latencies: list[float]
    percentiles: dict[str, float]
    output_tokens_per_second: float
    """Of all iterations together."""


def throughput(llm: Generates, asks: Sequence[Ask], *, ignore_eos: bool, temperature: float, bar: bool) -> Throughput:
    """Answer every ask, as fast as the engine schedules them. Raises OctavoError where one fails."""
    seconds, outputs = _timed(llm, asks, ignore_eos=ignore_eos, temperature=temperature, bar=bar)
    read = sum(len(o.prompt_token_ids) for o in outputs)
    written = sum(len(o.outputs[0].token_ids) for o in outputs)
    return Throughput(
        elapsed_time=seconds,
        num_requests=len(outputs),
        total_input_tokens=read,
        total_output_tokens=written,
        cached_tokens=sum(o.num_cached_tokens for o in outputs),
        total_num_tokens=read + written,
        requests_per_second=len(outputs) / seconds,
        tokens_per_second=(read + written) / seconds,
        output_tokens_per_second=written / seconds,
    )


def latency(
    llm: Generates, batches: Callable[[int], list[Ask]], *, warmups: int, iters: int, temperature: float
) -> Latency:
    """`batches(i)` answered whole, `warmups` times unmeasured, then `iters` times. Other prompts each time, so that no
    iteration is answered from the prefix cache."""
    for i in range(warmups):
        _timed(llm, batches(i), ignore_eos=True, temperature=temperature)
    seconds: list[float] = []
    written = 0
    for i in range(warmups, warmups + iters):
        took, outputs = _timed(llm, batches(i), ignore_eos=True, temperature=temperature)
        seconds.append(took)
        written += sum(len(o.outputs[0].token_ids) for o in outputs)
    ordered = sorted(seconds)
    named = {str(q): percentile(ordered, q) for q in LATENCY_PERCENTILES}
    total = math.fsum(seconds)
    return Latency(total / len(seconds), seconds, named, written / total)


def _timed(
    llm: Generates, asks: Sequence[Ask], *, ignore_eos: bool, temperature: float, bar: bool = False
) -> tuple[float, list[RequestOutput]]:
    params = [SamplingParams(max_tokens=a.out, temperature=temperature, ignore_eos=ignore_eos) for a in asks]
    began = time.perf_counter()
    # Rendering a conversation is part of the work that a user waits for.
    outputs = llm.generate([_prompt(llm, a) for a in asks], params, use_tqdm=bar)
    seconds = time.perf_counter() - began
    for output in outputs:
        if output.outputs[0].error:
            raise OctavoError(f"a request failed: {output.outputs[0].error}")
    return seconds, outputs


def _prompt(llm: Generates, ask: Ask) -> list[int] | str:
    if isinstance(ask.prompt, str):
        return ask.prompt
    if ask.is_chat:
        return llm.render_chat([m for m in ask.prompt if isinstance(m, dict)])
    return [i for i in ask.prompt if isinstance(i, int)]
