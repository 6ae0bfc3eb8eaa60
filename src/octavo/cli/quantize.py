"""`octavo quantize`: write a model in the packed format, and say what that cost in perplexity."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec

TEXT = Path(__file__).with_name("perplexity.txt")
"""The bundled text."""


class QuantizeFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    model: str
    """A directory, a .gguf file, a Hugging Face id, or a name of the catalogue (smollm2)."""
    out: str
    """The directory to write."""
    format: Literal["int4", "int8"] = "int4"
    """What linears stored as floats become; codes of a quantised file are kept as they are."""
    text: str | None = None
    """Text file (UTF-8) for perplexity before and after. Default: a bundled page of English."""
    no_eval: bool = False
    """Do not measure perplexity."""
    force: bool = False
    """Replace OUT where it exists."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    download_dir: str | None = None
    """Where fetched models are kept. Default: the user's cache."""
    offline: bool = False
    """Never fetch; fail where the model is not at hand."""


SPEC = Spec(
    "quantize",
    "Write a model as a directory packed for the kernels, which loads without repacking.",
    (QuantizeFlags,),
    (Positional("model"), Positional("out")),
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    flags: QuantizeFlags = parsed[QuantizeFlags]
    out = Path(flags.out)
    _check_out(out, force=flags.force)
    text = None if flags.no_eval else Path(flags.text or TEXT).read_text(encoding="utf-8")
    from octavo.llm.progress import LoadingBar
    from octavo.weights.source import resolve_model

    source = resolve_model(
        flags.model, cache_dir=flags.download_dir, revision=flags.revision, offline=flags.offline, progress=True
    )
    # By name: the command line itself reaches NumPy by no path (pyproject.toml, contract "forbidden").
    pack = importlib.import_module("octavo.runner.pack_directory").pack_directory
    with replacing(out) as partial, LoadingBar() as bar:
        lines = pack(source.path, partial, quantization=flags.format, progress=lambda part: bar.update("packing", part))
    for line in lines:
        print(line)
    print(f"{out}: {sum(f.stat().st_size for f in out.rglob('*') if f.is_file()) / 1e6:.1f} MB")
    if text is not None:
        before, after = _perplexity(str(source.path), text), _perplexity(str(out), text)
        print(f"perplexity {before:.4f} before, {after:.4f} after ({100 * (after / before - 1):+.2f} %)")
    return OK


def _check_out(out: Path, *, force: bool) -> None:
    """--force replaces what this command wrote, and nothing else."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise UsageError(f"{out}: it exists already; allowed: a new name, or --force to replace it")
    try:
        written = msgspec.json.decode((out / "config.json").read_bytes(), type=_Written)
    except (OSError, msgspec.DecodeError):
        written = _Written()
    if out.is_symlink() or written.quantization_config.get("quant_method") != "octavo":
        raise UsageError(f"{out}: got something else, allowed with --force: a directory that octavo quantize wrote")


class _Written(msgspec.Struct):
    quantization_config: dict[str, Any] = {}


def _perplexity(model: str, text: str) -> float:
    from octavo.cli.evaluate import perplexity
    from octavo.llm import LLM

    with LLM(model, max_num_seqs=4) as llm:
        score = perplexity(llm, text)
    if not score.tokens:
        raise UsageError("--text: got fewer than 3 tokens, allowed: more, since each is scored from those before")
    return score.perplexity


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new directory beside `out` that becomes `out` at the end, whole; a failure or an interrupt leaves nothing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        for file in partial.rglob("*"):
            if file.is_file():
                with file.open("rb") as open_file:
                    os.fsync(open_file.fileno())
        old = partial.with_suffix(".old")
        if out.exists():
            out.rename(old)
        partial.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        print(f"octavo: {out} was not written", file=sys.stderr)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
