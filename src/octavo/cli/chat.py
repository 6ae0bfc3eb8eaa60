"""`octavo chat`: a conversation in the terminal."""

from __future__ import annotations

import os
import sys

import msgspec

from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.sampling import SamplingFlags
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs


class ChatFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Chat."""

    url: str | None = None
    """Talk to a running server instead of loading a model, as in http://127.0.0.1:8000."""
    api_key: str | None = None
    """Key for --url. Default: the environment variable OCTAVO_API_KEY."""
    system: str | None = None
    """System message."""
    load: str | None = None
    """A conversation saved with /save."""
    no_history: bool = False
    """Do not keep what you type in the history file."""


NOTES = """\
In the conversation: /help lists the commands. Ctrl-C stops the answer, not the program; Ctrl-D or /exit ends it.
Several lines: Alt-Enter starts a new line, or put the text between two lines of three double quotes.
"""


SPEC = Spec(
    "chat",
    "Talk to a model in the terminal.",
    (ChatFlags, SamplingFlags, EngineArgs),
    (Positional("model", required=False),),
    NOTES,
    without=SERVER_ONLY,
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    args, flags, sampling = parsed[EngineArgs], parsed[ChatFlags], parsed[SamplingFlags]
    if not args.model and not flags.url:
        raise UsageError("chat: MODEL is missing, and there is no --url of a running server; see octavo chat --help")
    from octavo.cli.conversation import Conversation
    from octavo.cli.session import LocalTalker, RemoteTalker, Talker
    from octavo.cli.terminal import read_lines

    talker: Talker
    if flags.url:
        key = flags.api_key or os.environ.get("OCTAVO_API_KEY")
        talker = RemoteTalker(flags.url, api_key=key, model=args.model or None)
    elif flags.api_key:
        raise UsageError("--api-key: got a key without --url, allowed: only together with --url")
    else:
        talker = LocalTalker(args)
    try:
        talk = Conversation(talker, options=sampling.given(), system=flags.system, out=sys.stdout)
        if flags.load:
            talk.load(flags.load)
        print(f"{talker.name}  (/help for commands, Ctrl-D to leave)")
        for text in read_lines(history=not flags.no_history):
            try:
                if not talk.take(text):
                    break
            except KeyboardInterrupt:  # pressed just before or after an answer: it stops nothing, the program least
                print()
    finally:
        talker.close()
    return OK
