"""Server-sent events of OpenAI's streams, cheap: everything that does not change within a stream is bytes made once.

data: {"id":…,"object":…,"created":…,"model":…,"choices":[{"index":0,"text":  "Hi"  ,"logprobs":null,…}]}
|------------------------------ open ------------------------------------|  text  |------- plain --------|
"""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.server.openai.protocol import Usage

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class EventWriter:
    """Events of one choice of one stream. `event` is the hot path: one JSON string and two concatenations a token."""

    __slots__ = ("_close", "_first", "_open", "_plain", "_started", "_tail", "finished")

    def __init__(self, head: StreamHead, index: int) -> None:
        before = head.before + b'"choices":[{"index":%d,' % index
        if head.kind == "chat":
            self._first = before + b'"delta":{"role":"assistant","content":'
            self._open = before + b'"delta":{"content":'
            self._close = b"}"
        else:
            self._first = self._open = before + b'"text":'
            self._close = b""
        self._tail = b'}],"usage":null}\n\n' if head.usage else b"}]}\n\n"
        self._plain = self._close + b',"logprobs":null,"finish_reason":null' + self._tail
        self._started = False
        self.finished = False

    def event(self, text: str) -> bytes:
        """A token's event without scores."""
        if self._started:
            return self._open + _encode(text) + self._plain
        self._started = True
        return self._first + _encode(text) + self._plain

    def full(
        self, text: str, *, scores: object = None, finish: str | None = None, stop: int | str | None = None
    ) -> bytes:
        """An event with scores, or the last of its choice."""
        opening = self._open if self._started else self._first
        self._started = True
        parts = [opening, _encode(text), self._close, b',"logprobs":', _encode(scores)]
        parts += [b',"finish_reason":', _encode(finish)]
        if finish is not None:
            self.finished = True
            parts += [b',"stop_reason":', _encode(stop)]
        parts.append(self._tail)
        return b"".join(parts)


class StreamHead:
    """What all events of a stream begin with."""

    __slots__ = ("before", "kind", "usage")

    def __init__(self, kind: Literal["chat", "text"], *, id: str, created: int, model: str, usage: bool) -> None:
        name = b"chat.completion.chunk" if kind == "chat" else b"text_completion"
        self.kind = kind
        self.usage = usage
        """Whether the stream ends with usage; OpenAI's other events then say "usage":null."""
        fixed = (_encode(id), name, created, _encode(model))
        self.before = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % fixed

    def usage_event(self, usage: Usage) -> bytes:
        return self.before + b'"choices":[],"usage":' + _encode(usage) + b"}\n\n"


def error_event(body: object) -> bytes:
    """What ends a stream that failed after it began; no [DONE] follows."""
    return b"data: " + _encode(body) + b"\n\n"
