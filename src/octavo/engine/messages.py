"""What the front half and the engine say to each other: msgspec structs as msgpack, never pickle.

front half                          engine process
   <------------------ Hello()
   Start(args) ------------------------>   the model is a path; the tokenizer is built on this side meanwhile
   <------------------ Progress(...)     any number
   <------------------ Ready(...)        or Failed(...), and the process ends
   Add / Abort / ... ------------------>
   <------------------ Outputs(...)      one a step, for all sequences
   Stop() ----------------------------->
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from octavo import errors
from octavo.config.args import EngineArgs
from octavo.config.resolve import EngineConfig
from octavo.facts import Facts
from octavo.sched.refused import Refused
from octavo.sched.stats import SchedulerStats
from octavo.types import Request, SeqOutput

EngineStats: TypeAlias = SchedulerStats
"""The engine after a step: gauges of that moment, counters from the start."""


# -- to the engine ----------------------------------------------------------------------------------------------------
class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    args: EngineArgs
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    requests: list[Request]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    seq_ids: list[int]


class ResetPrefixCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget every cached block that nobody holds."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End in good order; open sequences are dropped."""


Down = Start | Add | Abort | ResetPrefixCache | Stop


# -- from the engine --------------------------------------------------------------------------------------------------
class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process is there and connected."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    phase: str
    fraction: float
    """0 to 1 within the phase."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    facts: Facts
    config: EngineConfig
    stats: EngineStats


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine could not start, or died by an error of its own. `kind` names a class of octavo.errors."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        if isinstance(error, errors.OctavoError):
            return cls(type(error).__name__, str(error))
        return cls("OctavoError", f"{type(error).__name__}: {error}")

    def error(self) -> errors.OctavoError:
        """The same typed error on this side."""
        found = getattr(errors, self.kind, None)
        known = isinstance(found, type) and issubclass(found, errors.OctavoError)
        return found(self.message) if known and found is not None else errors.OctavoError(self.message)


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All that one step gave."""

    outputs: list[SeqOutput]
    stats: EngineStats
    refused: list[Refused] = []
    """Requests that can never be served."""
    step_tokens: list[int] = []
    """Tokens of each step since the last message."""


Up = Hello | Progress | Ready | Failed | Outputs


def _plain(value: Any) -> Any:
    """NumPy scalars become numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"not plain data: {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_up = msgspec.msgpack.Decoder(Up)
_down = msgspec.msgpack.Decoder(Down)


def encode(message: Up | Down) -> bytes:
    return _encoder.encode(message)


def decode_up(data: bytes | memoryview) -> Up:
    """Raises msgspec.ValidationError on anything but a message of the engine."""
    return _up.decode(data)


def decode_down(data: bytes | memoryview) -> Down:
    """Raises msgspec.DecodeError on anything but a message to the engine."""
    try:
        return _down.decode(data)
    except (errors.InvalidRequest, UnicodeDecodeError, RecursionError) as error:
        raise msgspec.ValidationError(str(error)) from error


def unread_add(data: bytes | memoryview) -> list[int]:
    """The ids of the sequences in an Add that `decode_down` refuses, as far as they can be told; none of other data."""
    try:
        message = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    match message:
        case ["Add", [*requests]]:
            return [each[0] for each in requests if isinstance(each, list) and each and type(each[0]) is int]
    return []
