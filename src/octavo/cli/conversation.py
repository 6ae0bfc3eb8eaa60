"""A conversation and its slash commands, apart from the terminal and from who answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import msgspec

from octavo.cli.session import Message, Talker, Usage
from octavo.errors import OctavoError
from octavo.types.sampling import SamplingParams

HELP = """\
/system TEXT      set the system message (alone: show it)
/set NAME VALUE   set a sampling parameter, as in /set temperature 0.7 (alone: show them; VALUE "default" unsets)
/regenerate       answer the last message again
/clear            forget the conversation, keep the system message
/save FILE        write the conversation as JSON
/load FILE        read one back
/help             this list
/exit             leave (also Ctrl-D)
\"\"\"               starts and ends a text of several lines"""


class Conversation:
    """Messages so far, sampling options, and who answers. `take` handles one input and says whether to go on."""

    def __init__(self, talker: Talker, *, options: Mapping[str, Any], system: str | None, out: TextIO) -> None:
        self.talker = talker
        self.options = dict(options)
        self.system = system
        self.turns: list[Message] = []
        self._out = out
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._system,
            "/set": self._set,
            "/regenerate": self._regenerate,
            "/clear": self._clear,
            "/save": self.save,
            "/load": self.load,
            "/help": lambda _: self._say(HELP),
        }

    @property
    def messages(self) -> list[Message]:
        head: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def take(self, text: str) -> bool:
        """Handle one input; False ends the conversation. Errors are shown, never fatal."""
        if not text.strip():
            return True
        word, _, rest = text.strip().partition(" ")
        if word in ("/exit", "/quit", "/bye"):
            return False
        try:
            if word in self._commands:
                self._commands[word](rest.strip())
            elif word.startswith("/") and word[1:].isalpha() and "\n" not in text:
                self._say(f"no command {word}; allowed: {' '.join(self._commands)} /exit")
            else:
                self.turns.append({"role": "user", "content": text})
                self._answer()
        except (OctavoError, OSError) as error:
            self._say(f"[{error}]")
        return True

    def save(self, path: str) -> None:
        """Write messages and options; the file is the owner's alone."""
        if not path:
            return self._say("/save FILE: a file name is missing")
        body = {"model": self.talker.name, "system": self.system, "options": self.options, "messages": self.turns}
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(body, file, ensure_ascii=False, indent=1)
        self._say(f"[saved {len(self.turns)} messages to {path}]")

    def load(self, path: str) -> None:
        """Read what `save` wrote; a file of another shape changes nothing."""
        if not path:
            return self._say("/load FILE: a file name is missing")
        with open(path, "rb") as file:
            saved = _decode(file.read(), path)
        self.system, self.options, self.turns = saved.system, saved.options, saved.messages
        self._say(f"[loaded {len(self.turns)} messages from {path}]")

    def _answer(self) -> None:
        """Stream one answer; Ctrl-C keeps what came so far. A message that failed is taken back."""
        began, first, parts, usage = time.perf_counter(), 0.0, [], None
        stream = self.talker.stream(self.messages, self.options)
        stopped = False
        try:
            for piece in stream:
                if isinstance(piece, Usage):
                    usage = piece
                    break
                first = first or time.perf_counter()
                parts.append(piece)
                self._out.write(piece)
                self._out.flush()
        except KeyboardInterrupt:
            stopped = True
        except BaseException:
            self.turns.pop()
            if parts:
                self._say("")
            raise
        finally:
            stream.close()
        self._say("")
        if parts or not stopped:
            self.turns.append({"role": "assistant", "content": "".join(parts)})
        else:
            self.turns.pop()
        self._say(_figures(usage, began, first, time.perf_counter(), stopped=stopped, pieces=len(parts)))

    def _system(self, text: str) -> None:
        if text:
            self.system = text
        self._say(f"[system: {self.system or 'none (the template may have its own)'}]")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            return self._say(json.dumps(self.options) if self.options else "[all options at the model's defaults]")
        allowed = [f.name for f in msgspec.structs.fields(SamplingParams) if f.name not in NOT_HERE]
        if name not in allowed:
            return self._say(f"no option {name}; allowed: {' '.join(allowed)}")
        if value.strip() in ("default", ""):
            self.options.pop(name, None)
        else:
            trial = {**self.options, name: _value(name, value.strip())}
            try:
                msgspec.convert(trial, SamplingParams, strict=False)
            except (msgspec.ValidationError, OctavoError) as error:
                return self._say(f"[{error}]")
            self.options = trial
        self._say(f"[{name}: {self.options.get(name, 'default')}]")

    def _regenerate(self, _: str) -> None:
        if self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        if not self.turns:
            return self._say("nothing to answer yet")
        self._answer()

    def _clear(self, _: str) -> None:
        self.turns.clear()
        self._say("[cleared]")

    def _say(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


NOT_HERE = ("n", "logprobs", "prompt_logprobs", "logit_bias")


class Saved(msgspec.Struct):
    messages: list[Message]
    system: str | None = None
    options: dict[str, Any] = {}


def _decode(raw: bytes, path: str) -> Saved:
    try:
        return msgspec.json.decode(raw, type=Saved)
    except msgspec.MsgspecError as error:
        raise OctavoError(f"{path}: not a saved conversation: {error}") from None


def _value(name: str, text: str) -> Any:
    if name == "stop":
        return [text.encode().decode("unicode_escape") if text.isascii() else text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _figures(usage: Usage | None, began: float, first: float, ended: float, *, stopped: bool, pieces: int) -> str:
    """The line under an answer: tokens, speed, time to the first token. Without usage the pieces are counted."""
    tokens = usage.completion_tokens if usage else pieces
    speed = f"{(tokens - 1) / (ended - first):.1f} tok/s" if tokens > 1 and ended > first > 0 else "- tok/s"
    parts = [f"{tokens} tokens", speed]
    if first:
        parts.append(f"first after {first - began:.2f} s")
    if usage and usage.cached_tokens:
        parts.append(f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached")
    if stopped:
        parts.append("stopped")
    elif usage and usage.finish_reason == "length":
        parts.append("cut at the length limit")
    return f"[{', '.join(parts)}]"
