"""The table of commands: a command is a row here and a module with `SPEC` and `run(argv) -> exit code`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from octavo.cli.spec import Spec


class Command(NamedTuple):
    module: str
    usage: str
    summary: str


COMMANDS: dict[str, Command] = {
    "serve": Command("octavo.cli.serve", "MODEL", "serve a model over an OpenAI-compatible HTTP API"),
    "chat": Command("octavo.cli.chat", "MODEL | --url URL", "talk to a model in the terminal"),
    "run": Command("octavo.cli.run", "MODEL [PROMPT]", "answer a prompt, standard input, or a JSONL file"),
    "pull": Command("octavo.cli.pull", "MODEL", "fetch a model ahead of its first use"),
    "list": Command("octavo.cli.listing", "", "list the models on this machine, Ollama's and LM Studio's too"),
    "rm": Command("octavo.cli.remove", "MODEL", "delete a model that was fetched"),
    "explain": Command("octavo.cli.explain", "MODEL", "print a model's program, memory and cost of a step"),
    "eval": Command("octavo.cli.evaluate", "perplexity MODEL FILE...", "measure a model on text files"),
    "bench": Command("octavo.cli.bench", "serve|kernels|...", "measure a server, an engine, its kernels, its steps"),
    "quantize": Command("octavo.cli.quantize", "MODEL OUT", "write a model packed for the kernels, in 4 or 8 bits"),
    "completion": Command("octavo.cli.completion", "SHELL", "print a completion script for bash, zsh or fish"),
    "version": Command("octavo.cli.version", "", "print versions, CPU, instruction set and threads"),
}
"""Name -> where it lives. Nothing of a command is imported before it is called."""


def spec_of(name: str) -> Spec:
    """The command's line, for completion and for what all commands share."""
    spec: Spec = importlib.import_module(COMMANDS[name].module).SPEC
    return spec
