"""Panics of the `tokenizers` package -> typed errors. Its Rust code panics on files that contradict themselves, and
raises that as a BaseException, which would end more than the request that met it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import ModelError


@contextmanager
def no_panics() -> Iterator[None]:
    """Within it a panic is a ModelError; everything else stays as it is."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"the tokenizer's files contradict themselves: {error}") from None
