"""From exceptions to OpenAI's error objects. Bodies never hold paths, addresses or tracebacks (S20)."""

from __future__ import annotations

import msgspec

from octavo.errors import (
    EngineDead,
    InvalidRequest,
    NotFound,
    OctavoError,
    PromptTooLong,
    QueueFull,
    StepFailed,
    Unauthorized,
    UnsupportedField,
)
from octavo.server.exchange import BodyTimeout, BodyTooLarge, Header

MAX_MESSAGE = 600


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


class Draining(EngineDead):
    """The server is shutting down."""

    kind = "overloaded_error"


class Loading(EngineDead):
    """The model is not there yet."""

    kind = "overloaded_error"


class WrongMethod(InvalidRequest):
    status = 405

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


_CODES: list[tuple[type[OctavoError], str]] = [
    (PromptTooLong, "context_length_exceeded"),
    (UnsupportedField, "unsupported_parameter"),
    (BodyTooLarge, "request_too_large"),
    (WrongMethod, "method_not_allowed"),
    (InvalidRequest, "invalid_value"),
    (Unauthorized, "invalid_api_key"),
    (NotFound, "not_found"),
    (QueueFull, "queue_full"),
    (Draining, "shutting_down"),
    (Loading, "loading"),
    (EngineDead, "engine_dead"),
    (StepFailed, "step_failed"),
]

# What the inside says of itself stays in the log: these are all a client learns.
_FIXED: list[tuple[type[OctavoError], str]] = [
    (Draining, "the server is shutting down; send the request to another one or try again"),
    (Loading, "the model is still loading; try again in a moment"),
    (EngineDead, "the engine has stopped; the request was not completed"),
    (StepFailed, "the model could not compute this request; other requests are not affected"),
]


def describe(error: BaseException) -> tuple[int, ErrorBody, list[Header]]:
    """Status, body and extra headers for whatever a handler raised."""
    if not isinstance(error, OctavoError):
        info = ErrorInfo("internal error; the server's log has the details", "server_error", None, "internal_error")
        return 500, ErrorBody(info), []
    message = next((text for kind, text in _FIXED if isinstance(error, kind)), "")
    if not message:
        told = isinstance(error, InvalidRequest | Unauthorized | NotFound | QueueFull)
        message = clip(str(error)) if told else "internal error; the server's log has the details"
    code = next((text for kind, text in _CODES if isinstance(error, kind)), "internal_error")
    param = error.param if isinstance(error, InvalidRequest) else None
    headers: list[Header] = []
    if isinstance(error, QueueFull):
        headers.append((b"retry-after", b"%d" % max(1, error.retry_after)))
    elif isinstance(error, Draining | Loading):
        headers.append((b"retry-after", b"1"))
    elif isinstance(error, BodyTooLarge | BodyTimeout):
        headers.append((b"connection", b"close"))  # the rest of the body is not waited for
    elif isinstance(error, WrongMethod):
        headers.append((b"allow", error.allow.encode()))
    elif isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Basic realm="octavo", charset="UTF-8"'))
        headers.append((b"www-authenticate", b'Bearer realm="octavo"'))
    return error.status, ErrorBody(ErrorInfo(message, error.kind, param, code)), headers


def clip(text: str) -> str:
    """A message that quotes the request must not be as large as the request. What is allowed stands at its end."""
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} … {text[-MAX_MESSAGE // 2 + 3 :]}"
