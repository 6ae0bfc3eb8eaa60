"""`octavo rm`: delete a model that Octavo fetched."""

from __future__ import annotations

import sys

import msgspec

from octavo.cli.errors import FAILED, OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.listing import size_text
from octavo.cli.spec import Positional, Spec


class RemoveFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    model: str
    """A name of `octavo list` whose source is octavo, or huggingface with --hf."""
    hf: bool = False
    """Delete from the Hugging Face cache too, which other programs share."""
    yes: bool = False
    """Do not ask."""
    dry_run: bool = False
    """Say what would go, and delete nothing."""
    download_dir: str | None = None
    """Where fetched models are kept, beside the usual places."""


NOTES = """\
Models of LM Studio, llama.cpp and Ollama are never touched: the error says how to remove them there. With --hf,
owner/name goes with all its files, owner/name:TAG with what no other file shares.
"""

SPEC = Spec("rm", "Delete a model that was fetched.", (RemoveFlags,), (Positional("model"),), NOTES)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    flags = parsed[RemoveFlags]
    from octavo.weights.remove import plan, remove
    from octavo.weights.sources.table import places

    removal = plan(flags.model, places(flags.download_dir), hub=flags.hf)
    what = "\n".join(f"  {path}" for path in (*removal.paths, *removal.shared))
    if flags.dry_run:
        print(f"would remove {removal.name} ({size_text(removal.size)}):\n{what}")
        return OK
    if not flags.yes and not _agreed(removal.name, size_text(removal.size), what):
        print("nothing was removed", file=sys.stderr)
        return FAILED
    remove(removal)
    print(f"removed {removal.name}: {removal.size} bytes freed ({size_text(removal.size)})")
    return OK


def _agreed(name: str, size: str, what: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"rm: got nobody to ask whether {name} may go, allowed: --yes (or --dry-run)")
    print(f"remove {name} ({size})?\n{what}", file=sys.stderr)
    return input("[y/N] ").strip().lower() in ("y", "yes")
