"""Ctrl-C between steps, never inside one: a half-done step would leave scheduler and workers disagreeing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def between_steps() -> Iterator[None]:
    """Inside, SIGINT is only noted; at the end it becomes the KeyboardInterrupt it would have been.

    Does nothing in other threads, or where the program handles SIGINT itself.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
