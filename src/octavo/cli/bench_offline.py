"""`octavo bench throughput` and `octavo bench latency`: the engine in this process, without a server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from octavo.bench.datasets import Ask, random_asks
from octavo.cli.bench_data import DatasetFlags, ResultFlags, about
from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs

if TYPE_CHECKING:
    from octavo.llm import LLM


class LatencyFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Batch."""

    batch_size: int = 8
    """Requests at once."""
    input_len: int = 32
    """Tokens of a prompt."""
    output_len: int = 128
    """Tokens of an answer."""
    num_iters_warmup: int = 2
    """Batches before the first that counts."""
    num_iters: int = 10
    """Batches that count."""
    temperature: float = 0.0
    """Of sampling; 0 is greedy."""


THROUGHPUT = Spec(
    "bench throughput",
    "Answer many prompts in process, all due at once: requests and tokens a second.",
    (DatasetFlags, ResultFlags, EngineArgs),
    (Positional("model"),),
    without=SERVER_ONLY,
)
LATENCY = Spec(
    "bench latency",
    "Answer one batch of random prompts in process, again and again: seconds from submission to the last token.",
    (LatencyFlags, ResultFlags, EngineArgs),
    (Positional("model"),),
    without=SERVER_ONLY,
)


def throughput(argv: list[str]) -> int:
    parsed = parse(THROUGHPUT, argv)
    if parsed is None:
        return OK
    from octavo.bench import offline

    args, data = parsed[EngineArgs], parsed[DatasetFlags]
    data.check()
    with opened(args) as llm:
        ids = data.ids(args.seed or 0, vocab=llm.facts.vocab_size, without=tuple(llm.tokenizer.special_ids))
        found = offline.throughput(
            llm, data.asks(ids), ignore_eos=data.ends, temperature=data.temperature, bar=sys.stderr.isatty()
        )
        threads, isa = llm.facts.threads, llm.facts.isa
    body = {**about("throughput", args.model), "threads": threads, "isa": isa, "dataset": msgspec.structs.asdict(data)}
    text = (
        f"{args.model}: {data.words}; {threads} threads, {isa}\n"
        f"Throughput: {found.requests_per_second:.2f} requests/s, {found.tokens_per_second:,.1f} total tokens/s, "
        f"{found.output_tokens_per_second:,.1f} output tokens/s\n"
        f"{found.num_requests} requests in {found.elapsed_time:.2f} s: {found.total_input_tokens:,} tokens in "
        f"({found.cached_tokens:,} of them cached), {found.total_output_tokens:,} out"
    )
    parsed[ResultFlags].give(body | msgspec.structs.asdict(found), text)
    return OK


def latency(argv: list[str]) -> int:
    parsed = parse(LATENCY, argv)
    if parsed is None:
        return OK
    from octavo.bench import offline

    args, flags = parsed[EngineArgs], parsed[LatencyFlags]
    for name in ("batch_size", "input_len", "output_len", "num_iters"):
        if getattr(flags, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}: got {getattr(flags, name)}, allowed: 1 or more")
    data = DatasetFlags()
    with opened(args) as llm:
        special = tuple(llm.tokenizer.special_ids)

        def batch(i: int) -> list[Ask]:
            ids = data.ids(f"{args.seed or 0}.{i}", vocab=llm.facts.vocab_size, without=special)
            return random_asks(ids, flags.batch_size, input_len=flags.input_len, output_len=flags.output_len)

        found = offline.latency(
            llm, batch, warmups=max(0, flags.num_iters_warmup), iters=flags.num_iters, temperature=flags.temperature
        )
        threads, isa = llm.facts.threads, llm.facts.isa
    body = {**about("latency", args.model), "threads": threads, "isa": isa, **msgspec.structs.asdict(flags)}
    lines = [
        f"{args.model}: batch of {flags.batch_size}, {flags.input_len} in, {flags.output_len} out; "
        f"{threads} threads, {isa}",
        f"Avg latency: {found.avg_latency:.4f} seconds ({found.output_tokens_per_second:,.1f} output tokens/s)",
        *(f"{q}% percentile latency: {s:.4f} seconds" for q, s in found.percentiles.items()),
    ]
    parsed[ResultFlags].give(body | msgspec.structs.asdict(found), "\n".join(lines))
    return OK


def opened(args: EngineArgs) -> LLM:
    """An `LLM`, to be used in a `with`."""
    from octavo.llm import LLM

    return LLM(args)
