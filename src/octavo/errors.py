"""Every error Octavo raises on purpose, and the HTTP status each becomes.

    OctavoError                     500
    ├── InvalidRequest              400   the caller's request: says what, got, allowed
    │   ├── PromptTooLong           400
    │   └── UnsupportedField        400
    ├── Unauthorized                401
    ├── NotFound                    404   a model or route that is not served here
    ├── QueueFull                   503   carries retry_after seconds
    ├── EngineDead                  503
    ├── StepFailed                  500   one request's step failed; the others go on
    ├── ConfigError                 -     start-up: a flag or a combination of flags
    │   ├── DoesNotFit              -     start-up: the memory plan, with the largest setting that fits
    │   └── MissingExtra            -     a command whose packages are an extra that is not installed
    ├── ModelError                  -     a model file or directory that cannot be served
    │   └── FileFormatError         -     a count, length or offset that contradicts the file
    └── FetchError                  -     a download or catalogue entry

User errors are typed, never `assert`; `assert` is for bugs of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SHOWN = 200
"""Characters of a value that a message repeats."""


def shown(got: object) -> str:
    """A value as a message repeats it: its repr, cut where it is long. Never raises."""
    try:
        text = repr(got)
    except Exception:  # its own, or an integer of more digits than Python writes
        return f"a value of type {type(got).__name__} that cannot be written"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


class OctavoError(Exception):
    """Root of the tree."""

    status = 500
    kind = "server_error"


class InvalidRequest(OctavoError):
    """The caller's request is at fault; `param` names the field (None when no single field is)."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    @classmethod
    def field(cls, name: str, got: object, allowed: str) -> InvalidRequest:
        """The house form of a message: what, got, allowed."""
        return cls(f"{name}: got {shown(got)}, allowed: {allowed}", param=name)


class PromptTooLong(InvalidRequest):
    """The prompt (plus what must follow it) exceeds a limit; the message holds both numbers."""


class UnsupportedField(InvalidRequest):
    """A field this server does not have, named; never silently ignored."""


class Unauthorized(OctavoError):
    status = 401
    kind = "authentication_error"


class NotFound(OctavoError):
    status = 404
    kind = "not_found_error"


class QueueFull(OctavoError):
    status = 503
    kind = "overloaded_error"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineDead(OctavoError):
    status = 503
    kind = "engine_dead_error"


class StepFailed(OctavoError):
    """A step failed and this request was the one that failed it."""


class ConfigError(OctavoError):
    """A flag, or a combination of flags, that cannot be served."""


class DoesNotFit(ConfigError):
    """The memory plan exceeds the machine; the message holds the table and the largest setting that fits."""


class MissingExtra(ConfigError):
    """A command needs packages that come with an extra."""

    @classmethod
    def needed_by(cls, command: str, *, package: str, extra: str) -> MissingExtra:
        """Says how to install it."""
        return cls(f"{command} needs {package}, which is not installed: pip install 'octavo[{extra}]'")


class ModelError(OctavoError):
    """A model that cannot be served (unknown architecture, missing tensor, unsupported tensor type)."""


class FileFormatError(ModelError):
    """A file whose counts, lengths or offsets contradict its size or its format."""


class FetchError(OctavoError):
    """A model that cannot be fetched."""


def did_you_mean(got: object, known: Iterable[str]) -> str:
    """The end of a refusal: "; did you mean X?", where a known name is near; else nothing."""
    from difflib import get_close_matches  # only a refusal needs it

    folded = {name.lower(): name for name in known}
    near = get_close_matches(str(got).lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[near[0]]}?" if near else ""


PARTS = 32
"""Parts of a name between dots, from which on it is no model's and is taken as it is: files may hold any text."""


def every(names: Iterable[str]) -> str:
    """All of them on one line, none left out: names that differ in numbers between dots only are one pattern with
    ranges, "model.layers.0-3,5.mlp.up_proj.weight". Patterns stay in the order of their first names."""
    rows = dict.fromkeys(tuple(name.split(".")) if name.count(".") < PARTS else (name,) for name in names)
    for place in reversed(range(max(map(len, rows), default=0))):
        rows = dict.fromkeys(_merge(rows, place))
    return ", ".join(".".join(row) for row in rows)


def _merge(rows: Iterable[tuple[str, ...]], place: int) -> Iterator[tuple[str, ...]]:
    """Rows that differ in a number at `place` only, as one."""
    numbers: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for row in rows:
        counts = len(row) > place and _is_number(row[place])
        rest = row[:place] + row[place + 1 :] if counts else row
        numbers.setdefault((counts, rest), []).extend([int(row[place])] if counts else [])
    for (counts, rest), found in numbers.items():
        yield (*rest[:place], _ranges(found), *rest[place:]) if counts else rest


def _is_number(text: str) -> bool:
    """Written as this program writes it, so that it can be written again: no leading zeros, no other digits."""
    return text.isdecimal() and text.isascii() and (text == "0" or text[0] != "0") and len(text) <= 9


def _ranges(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
