"""What the comparison knows of an engine, and of a model in the forms that engines read."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model; each engine takes the form it runs best. Forms that are not at hand are None."""

    name: str
    """In folder names and titles."""
    gguf: Path | None = None
    directory: Path | None = None
    """Hugging Face directory in float: the GGUF file's own values where there is such a file."""
    w8a8: Path | None = None
    """compressed-tensors directory: int8 weights per channel, int8 activations per token."""


class Engine(Protocol):
    """A server with an OpenAI port. Tuned by its own guide for `threads` cores and 32 streams."""

    name: str
    """In tables and file names: letters, digits, hyphens."""
    caveat: str
    """What its figures do not say, "" for nothing."""

    def refuses(self, model: Model) -> str | None:
        """Why it cannot serve `model` here, None where it can."""

    def weights(self, model: Model) -> Path:
        """What it opens. Only where `refuses` is None, as all below."""

    def command(self, model: Model, port: int) -> list[str]:
        """The server of `model` under the name `m` on loopback."""

    def environment(self) -> dict[str, str]:
        """Variables added to this process's own."""

    def version(self) -> str:
        """As it tells it itself. Raises OSError or subprocess.SubprocessError where it is not installed."""


def said(command: Sequence[str], *, env: dict[str, str] | None = None) -> str:
    """What a command prints, both streams, without blank ends. Raises subprocess.SubprocessError (a failure with the
    end of what it printed), OSError.
    """
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        env=os.environ | (env or {}),
    )
    if done.returncode:
        words = " ".join(done.stdout[-300:].split())
        raise subprocess.SubprocessError(f"{Path(command[0]).name} ended with code {done.returncode}: {words}")
    return done.stdout.strip()


def missing(path: Path | None, what: str) -> str | None:
    """The reason to refuse where `what` was not given or is not there."""
    if path is None:
        return f"no {what} given"
    return None if path.exists() else f"no such {what}: {path.name}"
