"""Entry point: finds the command, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

from octavo.cli.commands import COMMANDS as COMMANDS
from octavo.cli.errors import FAILED, INTERRUPTED, OK, USAGE

EPILOG = """\
MODEL is a directory or .gguf file, a name as octavo list shows it (models of LM Studio, llama.cpp and Ollama too),
a Hugging Face id (owner/name or owner/name:Q4_K_M), or a name of the catalogue (smollm2).
octavo help COMMAND lists a command's options. --debug (or OCTAVO_DEBUG=1) shows tracebacks.
First steps:  octavo serve smollm2     octavo chat smollm2     octavo run smollm2 "Why is the sky blue?"
"""


def help_text() -> str:
    left = {name: f"{name} {c.usage}".rstrip() for name, c in COMMANDS.items()}
    width = max(map(len, left.values()))
    rows = "\n".join(f"  {left[name]:<{width}}  {c.summary}" for name, c in COMMANDS.items())
    return f"usage: octavo COMMAND ...\n\nServes large language models on the machine you have.\n\n{rows}\n\n{EPILOG}"


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code (0 done, 1 failed, 2 usage, 3 some lines failed, 130 interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("OCTAVO_DEBUG", "") not in ("", "0")
    if "--debug" in words:
        words.remove("--debug")
        debug = True
    try:
        return dispatch(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) went away: not an error. Keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except Exception as error:
        if debug:
            raise
        return report(error)


def dispatch(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return OK if words else USAGE
    name, *rest = words
    if name in ("-V", "--version"):
        from octavo import __version__

        print(f"octavo {__version__}")
        return OK
    if name not in COMMANDS:
        from octavo.cli.rivals import unknown_command

        raise unknown_command(name, list(COMMANDS))
    code: int = importlib.import_module(COMMANDS[name].module).run(rest)
    return code


def report(error: Exception) -> int:
    """One clear line on stderr; our own typed errors speak for themselves, a bug names its type."""
    from octavo.errors import ConfigError, DoesNotFit, InvalidRequest, OctavoError

    if isinstance(error, OctavoError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = f"{type(error).__name__}: {error} (a bug of ours: run again with --debug for the traceback)"
    print(f"octavo: {text}", file=sys.stderr)
    usage = isinstance(error, ConfigError | InvalidRequest) and not isinstance(error, DoesNotFit)
    return USAGE if usage else FAILED


if __name__ == "__main__":
    sys.exit(main())
