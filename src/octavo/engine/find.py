"""Finding the model of a start: `python -m octavo.engine.find JSON`, where something must be fetched.

A thread cannot be stopped in a download, in pip or in hashing gigabytes; a process can, at any moment, and what it had
of a file stays for the next (weights/hub.py).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

import msgspec

from octavo.config.args import EngineArgs
from octavo.engine.build import find_local, find_model
from octavo.engine.messages import Failed
from octavo.engine.spawn import Spawned
from octavo.errors import EngineDead, FetchError
from octavo.obs import log as obs_log


class Find(msgspec.Struct, frozen=True):
    """What it is given."""

    args: EngineArgs
    log_level: obs_log.Level


class Found(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The arguments with the model as a path."""

    args: EngineArgs


_answer: msgspec.msgpack.Decoder[Found | Failed] = msgspec.msgpack.Decoder(Found | Failed)


def find_for(spawned: Spawned, args: EngineArgs, *, log_level: obs_log.Level) -> EngineArgs:
    """As `find_model`, but closing `spawned` ends a fetch at once. Raises FetchError, and EngineDead where it was
    closed."""
    found = find_local(args)
    if found is not None:
        return found
    process = spawned.helper("octavo.engine.find", msgspec.json.encode(Find(args, log_level)).decode())
    assert process.stdout is not None
    with process.stdout as answer:
        data = answer.read()
    process.wait()
    if spawned.closed:
        raise EngineDead("the engine was closed before it had started")
    if not data:
        raise FetchError(f"{args.model}: what fetches it ended without a word (exit code {process.returncode})")
    match _answer.decode(data):
        case Found(args=found):
            return found
        case Failed() as failed:
            raise failed.error()


def _die_with_parent() -> None:
    """Our standard input is a pipe whose other end only the parent holds. What we started (pip) ends with us."""

    def watch() -> None:
        while os.read(0, 64):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="octavo-parent", daemon=True).start()


def main(given: str) -> None:
    """Writes a Found or a Failed to what was standard output; everything else that is written goes to the other.

    `given`: a Find, as JSON.
    """
    find = msgspec.json.decode(given, type=Find)
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        _die_with_parent()
        obs_log.configure(find.log_level, part="fetch")
        said: Found | Failed
        try:
            said = Found(find_model(find.args))
        except Exception as error:
            said = Failed.of(error)
        answer.write(msgspec.msgpack.encode(said))
    # Threads of a client that still wait for something must not keep us.
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
