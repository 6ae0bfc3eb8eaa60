"""The errors for what only other engines' command lines have, or nobody's."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cli.errors import UsageError
from octavo.config.rivals import FLAGS, near, value_advice

COMMANDS: dict[str, str] = {
    "ls": "here it is octavo list",
    "ps": "each server runs one model; see GET /v1/models and /metrics of it",
    "remove": "here it is octavo rm MODEL",
    "stop": "press Ctrl-C in the server's terminal, or send it SIGTERM: it drains",
    "create": "not needed: a .gguf file or a Hugging Face directory is served as it is",
    "show": "here it is octavo explain MODEL",
    "complete": "here it is octavo run MODEL PROMPT",
    "run-batch": "here it is octavo run MODEL --input FILE --output FILE",
    "download": "here it is octavo pull MODEL",
}


def unknown_flag(flag: str, known: list[str], *, command: str, others: Sequence[str] = ()) -> UsageError:
    """The error for a flag that `command` does not have, with the best advice there is. `others`: commands that do."""
    if flag in FLAGS and flag not in known:
        return UsageError(f"{command} has no {flag}: {FLAGS[flag]}")
    if others:
        return UsageError(f"{command} has no {flag}: it is an option of octavo {', '.join(others)}")
    close = near(flag, known)
    advice = f"did you mean {close}?" if close else f"see octavo {command} --help"
    return UsageError(f"{command} has no {flag}: {advice}")


def unknown_command(name: str, known: list[str]) -> UsageError:
    if name in COMMANDS:
        return UsageError(f"no command {name!r}: {COMMANDS[name]}")
    close = near(name, known)
    advice = f"did you mean {close}?" if close else f"allowed: {', '.join(known)}"
    return UsageError(f"no command {name!r}: {advice}")


def unknown_value(flag: str, got: str, allowed: str) -> UsageError:
    """The error for a value that `flag` does not take."""
    return UsageError(f"{flag}: got {got!r}, allowed: {allowed}{value_advice(flag, got)}")
