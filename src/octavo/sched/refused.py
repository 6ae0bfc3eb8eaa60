"""Why a request was not taken in."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.errors import InvalidRequest, PromptTooLong


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The scheduler's no at intake: nothing was kept. Travels to the client, which raises `error()`."""

    seq_id: int
    kind: Literal["too_long", "invalid"]
    message: str
    param: str | None = None

    def error(self) -> InvalidRequest:
        """The exception a caller should see."""
        made = PromptTooLong if self.kind == "too_long" else InvalidRequest
        return made(self.message, param=self.param)
