"""`octavo chat` on a pty with the fake engine: Ctrl-C stops the answer, Ctrl-D leaves, history stays."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT = 60.0


class Terminal:
    """A program on a pty; what it wrote, escape sequences taken out."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self._leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            words,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=env,
            start_new_session=True,
            preexec_fn=_own_tty,
        )
        os.close(follower)
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def wait_for(self, pattern: str, *, after: int = 0) -> int:
        """Reads until the pattern stands after that offset; returns where its match ends."""
        end = time.monotonic() + TIMEOUT
        while not (match := re.compile(pattern).search(self.text, after)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text[after:]!r}"
            if select.select([self._leader], [], [], 0.5)[0]:
                try:
                    raw = os.read(self._leader, 65536).decode(errors="replace")
                except OSError:
                    raw = ""
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
        return match.end()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._leader)


def _own_tty() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    words = [sys.executable, "-m", "octavo", "chat", "fake", "--executor", "fake", "--max-tokens", "7000"]
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    found = Terminal(words, env)
    yield found
    found.close()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    at = terminal.wait_for(r"leave\)\s+>")
    terminal.type("hello there\r")
    at = terminal.wait_for(r"hello there\s+\S+", after=at)
    time.sleep(0.3)
    terminal.type("\x03")
    at = terminal.wait_for(r"\[\d+ tokens, .*\]\s+>", after=at)
    time.sleep(0.5)  # a prompt is drawn before it reads keys
    terminal.type("\x03")  # on an empty line: ignored
    at = terminal.wait_for(r">", after=at)
    time.sleep(0.5)  # what is typed before the Ctrl-C is handled goes with it
    terminal.type("/set max_tokens 5\r")
    at = terminal.wait_for(r"\[max_tokens: 5\]\s+>", after=at)
    terminal.type("again\r")
    at = terminal.wait_for(r"\[5 tokens, [\d.]+ tok/s, first after [\d.]+ s.*\]\s+>", after=at)
    terminal.type("\x04")
    assert terminal.process.wait(TIMEOUT) == 0
    kept = (tmp_path / "octavo" / "chat_history").read_text()
    assert "+hello there" in kept
