"""Reading what the user types: a line editor on a terminal, plain lines from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

QUOTES = '"""'


def read_lines(*, history: bool) -> Iterator[str]:
    """Inputs one by one until the end of input. Ctrl-C on an empty line is ignored; text between two lines of three
    double quotes is one input."""
    ask = _editor(history) if sys.stdin.isatty() else _pipe()
    while True:
        try:
            text = ask("> ")
            if text.lstrip().startswith(QUOTES) and text.strip().count(QUOTES) == 1:
                text = _block(ask, text)
            elif text.strip().startswith(QUOTES) and text.strip().endswith(QUOTES) and len(text.strip()) >= 6:
                text = text.strip()[3:-3]
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        yield text


def _block(ask: Callable[[str], str], head: str) -> str:
    lines = [head.lstrip()[3:]] if head.strip() != QUOTES else []
    while True:
        line = ask("... ")
        if line.rstrip().endswith(QUOTES):
            last = line.rstrip()[:-3]
            return "\n".join([*lines, last] if last else lines)
        lines.append(line)


def _pipe() -> Callable[[str], str]:
    def ask(_: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    return ask


def _editor(history: bool) -> Callable[[str], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    store: History = FileHistory(str(history_file())) if history else InMemoryHistory()
    session: PromptSession[str] = PromptSession(history=store, key_bindings=keys)
    return session.prompt


def history_file() -> Path:
    """$XDG_STATE_HOME/octavo/chat_history (default ~/.local/state), readable by its owner alone."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "octavo"
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = base / "chat_history"
    path.touch(mode=0o600)
    return path
