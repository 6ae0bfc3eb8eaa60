"""`octavo run`: answer a prompt, standard input, or a JSONL file."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

from octavo.cli.asking import engine, prompt_of
from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.sampling import SamplingFlags, params_from
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs
from octavo.errors import OctavoError


class RunFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Input and output."""

    prompt: str | None = None
    """The text to answer; - or nothing reads standard input."""
    input: str | None = None
    """A JSONL file to answer line by line (- is standard input)."""
    output: str | None = None
    """Where answers to --input go, one line each, in the order of the input. Default: standard output."""
    resume: bool = False
    """Go on where an interrupted run left --output."""
    raw: bool = False
    """Continue the prompt as it is, without the chat template."""
    system: str | None = None
    """System message."""
    quiet: bool = False
    """No figures, no progress bar."""


NOTES = """\
A line of --input is an object with "prompt" (text or token ids) or "messages", sampling fields (the options above with
underscores), and an optional "id" that comes back. OpenAI batch lines ("custom_id", "body") are understood too.
A line of --output has "line", "id", "text", "finish_reason" and "usage", or "error".
exit code: 0 all answered; 1 stopped by an error; 2 wrong usage; 3 finished, some lines have errors; 130 interrupted.
"""


SPEC = Spec(
    "run",
    "Answer a prompt, standard input, or a JSONL file.",
    (RunFlags, SamplingFlags, EngineArgs),
    (Positional("model"), Positional("prompt", required=False)),
    NOTES,
    without=SERVER_ONLY,
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    args, flags, sampling = parsed[EngineArgs], parsed[RunFlags], parsed[SamplingFlags]
    if flags.input is not None:
        if flags.prompt:
            raise UsageError("run: got a PROMPT and --input, allowed: one of them")
        from octavo.cli.batch import Job, run_batch

        job = Job(flags.input, flags.output, flags.resume, flags.raw, flags.system, flags.quiet, sampling.given())
        return asyncio.run(run_batch(args, job))
    if flags.output or flags.resume:
        raise UsageError("run: got --output or --resume without --input, allowed: only together with it")
    text = flags.prompt if flags.prompt not in (None, "", "-") else _stdin()
    return asyncio.run(_answer(args, text, flags, sampling.given()))


def _stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("run: PROMPT is missing, and nothing comes on standard input")
    text = sys.stdin.read()
    if not text.strip():
        raise UsageError("run: the prompt on standard input is empty")
    return text


async def _answer(args: EngineArgs, text: str, flags: RunFlags, given: dict[str, Any]) -> int:
    import time

    async with engine(args) as llm:
        params = params_from(llm.default_sampling, given)
        began, first = time.perf_counter(), 0.0
        out = None
        async for out in llm.generate(prompt_of(llm, text, raw=flags.raw, system=flags.system), params):
            first = first or time.perf_counter()
            sys.stdout.write(out.outputs[0].delta)
            sys.stdout.flush()
        ended = time.perf_counter()
        assert out is not None
        done = out.outputs[0]
        sys.stdout.write("\n")
        if done.error:
            raise OctavoError(done.error)
        if not flags.quiet and sys.stderr.isatty():
            count = len(done.token_ids)
            speed = f"{(count - 1) / (ended - first):.1f} tok/s" if count > 1 else "- tok/s"
            print(f"[{count} tokens, {speed}, first after {first - began:.2f} s]", file=sys.stderr)
    return OK
