"""JSONL in, JSONL out: many lines in flight, answers written in the order of the input, one error a line not fatal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from octavo.cli.asking import engine, prompt_of
from octavo.cli.errors import OK, SOME_FAILED, UsageError
from octavo.cli.sampling import params_from
from octavo.config.args import EngineArgs
from octavo.errors import EngineDead, InvalidRequest, OctavoError, QueueFull
from octavo.obs.log import get_logger
from octavo.server.openai.params import check_model

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM

log = get_logger(__name__)

RENDERING = ("add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")
"""Fields of a line that are for the chat template."""


class Job(NamedTuple):
    input: str
    output: str | None
    resume: bool
    raw: bool
    system: str | None
    quiet: bool
    sampling: dict[str, Any]
    names: tuple[str, ...] = ()
    """What a line may call the model; the first is its own."""


class Done(NamedTuple):
    """How far an earlier run came."""

    lines: int = 0
    """Whole lines of its output."""
    failed: int = 0
    """How many of them were errors."""
    size: int = 0
    """Bytes they take."""
    last: int = 0
    """Number of the last input line that it answered."""


async def run_batch(args: EngineArgs, job: Job) -> int:
    """Answer every line; returns the exit code. Memory does not grow with the file: a window of lines is in flight."""
    if job.resume and not job.output:
        raise UsageError("--resume: got no --output, allowed: only together with it")
    done = earlier(job.output) if job.resume and job.output else Done()
    if job.output and not job.resume and os.path.exists(job.output) and os.path.getsize(job.output):
        raise UsageError(f"--output: {job.output} exists; --resume goes on where it ends, or choose another name")
    with _open_input(job.input) as source, _open_output(job.output, done.size) as sink:
        async with engine(args) as llm:
            job = job._replace(names=tuple(dict.fromkeys((*llm.model_names, args.model))))
            failed = await _answer_all(llm, job, source, sink, done, window=2 * args.max_num_seqs)
    failed += done.failed
    if failed and not job.quiet:
        print(f"octavo: {failed} lines have errors", file=sys.stderr)
    return SOME_FAILED if failed else OK


def earlier(path: str) -> Done:
    """Read an earlier output as far as it is whole; what follows the last whole line will be overwritten."""
    if not os.path.exists(path):
        return Done()
    lines = failed = size = last = 0
    with open(path, "rb") as file:
        for raw in file:
            try:
                record = msgspec.json.decode(raw)
                whole = raw.endswith(b"\n") and record["line"] > last
            except (msgspec.DecodeError, KeyError, TypeError):
                whole = False
            if not whole and raw.endswith(b"\n"):
                raise UsageError(f"--resume: line {lines + 1} of {path} is not from an earlier run of this command")
            if not whole:
                break
            lines, failed, size = lines + 1, failed + ("error" in record), size + len(raw)
            last = record["line"]
    return Done(lines, failed, size, last)


@contextmanager
def _open_input(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
    else:
        with open(path, "rb") as file:
            yield file


@contextmanager
def _open_output(path: str | None, size: int) -> Iterator[BinaryIO]:
    """The output, positioned after the `size` bytes that stay."""
    if path is None:
        yield sys.stdout.buffer
    else:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            file.truncate(size)
            file.seek(size)
            yield file


async def _answer_all(llm: AsyncLLM, job: Job, source: BinaryIO, sink: BinaryIO, done: Done, *, window: int) -> int:
    """Keep `window` lines in flight; write the oldest when it is ready. Returns how many are errors."""
    from tqdm import tqdm

    failed = 0
    flying: deque[asyncio.Task[dict[str, Any]]] = deque()
    bar = tqdm(unit=" lines", disable=job.quiet or not sys.stderr.isatty(), initial=done.lines)

    async def write_oldest() -> int:
        record = await flying[0]
        flying.popleft()
        sink.write(msgspec.json.encode(record) + b"\n")
        sink.flush()
        bar.update()
        return "error" in record

    try:
        for number, raw in _lines(source):
            if number <= done.last:
                continue
            flying.append(asyncio.create_task(_answer_line(llm, job, number, raw)))
            await asyncio.sleep(0)
            while len(flying) >= window or (flying and flying[0].done()):
                failed += await write_oldest()
        while flying:
            failed += await write_oldest()
    finally:
        bar.close()
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
    return failed


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that hold something, with their number in the file, from 1."""
    for number, raw in enumerate(source, 1):
        if raw.strip():
            yield number, raw


async def _answer_line(llm: AsyncLLM, job: Job, number: int, raw: bytes) -> dict[str, Any]:
    """One line's record. Only a dead engine is fatal: a line that runs into a bug of ours has an error, as others have,
    and the log its traceback."""
    record: dict[str, Any] = {"line": number}
    try:
        fields = _decode(raw)
        name = fields.pop("custom_id", None)
        name = fields.pop("id", name)
        if name is not None:
            record["id"] = name
        record |= await _generate(llm, job, _body(fields))
    except EngineDead:
        raise
    except OctavoError as error:
        record["error"] = {"type": error.kind, "message": str(error)}
    except Exception as error:
        log.exception("line %d of the input failed inside Octavo", number)
        record["error"] = {"type": OctavoError.kind, "message": f"internal error: {type(error).__name__}: {error}"}
    return record


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"not a JSON object: {error}") from None
    except RecursionError:
        raise InvalidRequest("not a JSON object: nested too deeply") from None


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """An OpenAI batch line's body, or the line itself; what says how to send it is dropped."""
    if "body" not in fields:
        return fields
    body = fields["body"]
    if not isinstance(body, dict):
        raise InvalidRequest.field("body", body, "an object")
    return {k: v for k, v in body.items() if k != "stream"}


def _rendering(fields: dict[str, Any]) -> dict[str, Any]:
    """Takes out of a line what is for the chat template."""
    asked = {name: fields.pop(name) for name in RENDERING if name in fields}
    opens = {"add_generation_prompt": False} if asked.get("continue_final_message") is True else {}
    return {**opens, **asked}


async def _generate(llm: AsyncLLM, job: Job, fields: dict[str, Any]) -> dict[str, Any]:
    model = fields.pop("model", None)
    if not isinstance(model, str | None):
        raise InvalidRequest.field("model", model, "a text")
    check_model(model, job.names)
    prompt, messages = fields.pop("prompt", None), fields.pop("messages", None)
    if (prompt is None) == (messages is None):
        raise InvalidRequest("a line has either prompt or messages")
    ids: str | list[int]
    if messages is not None:
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise InvalidRequest.field("messages", messages, "a list of objects with role and content")
        ids = llm.render_chat(messages, **_rendering(fields))
    elif isinstance(prompt, str):
        ids = prompt_of(llm, prompt, raw=job.raw, system=job.system)
    elif isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt):
        ids = prompt
    else:
        raise InvalidRequest.field("prompt", prompt, "a text or a list of token ids")
    params = params_from(llm.default_sampling, {**job.sampling, **fields})
    while True:
        try:
            outputs = [out async for out in llm.generate(ids, params, stream=False)]
            break
        except QueueFull as full:
            await asyncio.sleep(full.retry_after)
    out = outputs[-1]
    for answer in out.outputs:
        if answer.error:
            raise OctavoError(answer.error)
    texts = [answer.text for answer in out.outputs]
    return {
        "text": texts[0] if len(texts) == 1 else texts,
        "finish_reason": out.outputs[0].finish_reason,
        "usage": {
            "prompt_tokens": len(out.prompt_token_ids),
            "cached_tokens": out.num_cached_tokens,
            "completion_tokens": sum(len(answer.token_ids) for answer in out.outputs),
        },
    }
