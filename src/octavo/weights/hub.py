"""Fetching from Hugging Face: the only file that talks to huggingface-hub.

The client keeps nothing of a file that was cut short. So weights are fetched here, over the client's own HTTP, to where
it looks for their content, and it then only links them:

    the client's lock -> blobs/<etag>.incomplete, from its end on -> fsync, sha256 (the etag is one) -> blobs/<etag>

A process killed anywhere leaves a part that the next one goes on with. Weights come one file after the other, and not
over Xet, which cannot go on. What the client must do itself (other files, which are small; more bytes than plain HTTP
serves; a file that another repository has) begins again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import FetchError
from octavo.obs.log import get_logger
from octavo.weights.gguf_parts import part_names
from octavo.weights.tags import choose_file, tag_of, whole_models

log = get_logger(__name__)

JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "tokenizer.model",
    "tekken.json",
)
TEMPLATES = "additional_chat_templates/"
WEIGHTS = (".gguf", ".safetensors")
LARGEST = 50_000_000_000
"""Bytes of the largest file that Hugging Face serves over plain HTTP."""
SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(
    repo: str,
    choice: str,
    *,
    cache_dir: str | Path | None,
    revision: str | None,
    offline: bool,
    progress: bool,
    say: Callable[[str], None],
) -> Path:
    """Path of what `choice` means in `repo`, in the client's cache: a GGUF file (all parts of a split one are fetched,
    the first is named) or a directory. `offline` takes what the cache has. Raises FetchError."""
    import huggingface_hub as hub
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if progress else disable_progress_bars)()
    where: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "local_files_only": offline}
    try:
        if offline:
            # No patterns: the client wants no file of the repository that was never asked for.
            snapshot = Path(hub.snapshot_download(repo, allow_patterns=[], **where))
            files = sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
        else:
            files = hub.list_repo_files(repo, revision=revision)
        name = choose_file(repo, choice, files)
        if name is not None:
            if not choice and len(whole_models(files)) > 1:
                say(f"{repo}: taking {tag_of(name) or name}; {repo}:TAG chooses another of {_others(files)}")
            parts = [_file(repo, part, where) for part in part_names(name)]
            return parts[0]
        if offline:
            return snapshot
        wanted = [name for name in files if _is_wanted(name)]
        # What is small first: with the index, a directory that is cut short later is seen to be.
        small = [name for name in wanted if not name.endswith(WEIGHTS)]
        snapshot = Path(hub.snapshot_download(repo, allow_patterns=small, **where))
        for name in wanted:
            if name not in small:
                _file(repo, name, {**where, "revision": snapshot.name})
        return snapshot
    except FetchError:
        raise
    except Exception as error:  # the client's many network errors, and its own
        raise FetchError(f"{repo}: {_reason(error, offline)}") from None


def _file(repo: str, name: str, where: dict[str, Any]) -> Path:
    """A file of weights in the client's cache."""
    import huggingface_hub as hub

    if not where["local_files_only"]:
        _fill(repo, name, revision=where["revision"], cache_dir=where["cache_dir"])
    return Path(hub.hf_hub_download(repo, name, **where))


def _fill(repo: str, name: str, *, revision: str | None, cache_dir: str | Path | None) -> None:
    """Sees to it that the cache has the content of a file, going on with what of it is there. Does nothing where the
    client must do it. Raises FetchError for a wrong hash, and the client's errors."""
    import huggingface_hub as hub

    utils: Any = hub.utils  # its stubs do not export what its list of names does
    told = hub.get_hf_file_metadata(hub.hf_hub_url(repo, name, revision=revision))
    etag, size = told.etag, told.size
    if etag is None or not SHA256.fullmatch(etag) or not size or size > LARGEST:
        return
    cache = Path(cache_dir or hub.constants.HF_HUB_CACHE)
    folder = f"models--{repo.replace('/', '--')}"
    blob, lock = cache / folder / "blobs" / etag, cache / ".locks" / folder / f"{etag}.lock"
    xet = getattr(told.xet_file_data, "file_hash", "")
    if blob.exists() or (xet and (cache / "blobs" / xet[:2] / xet).is_file()):
        return
    try:
        from huggingface_hub.file_download import http_get
    except ImportError:
        log.warning("%s: %s begins again if it is cut short: this huggingface-hub has no http_get", repo, name)
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    url = hub.hf_hub_url(repo, name, revision=told.commit_hash or revision)
    headers = {**utils.build_hf_headers(), "Accept-Encoding": "identity"}
    with utils.WeakFileLock(lock):
        if not blob.exists():  # another process may have fetched it meanwhile
            get: dict[str, Any] = {"headers": headers, "expected_size": size, "displayed_filename": name}
            _go_on(f"{repo}: {name}", blob, size, lambda file, there: http_get(url, file, resume_size=there, **get))


def _go_on(what: str, blob: Path, size: int, get: Callable[[Any, int], None]) -> None:
    """Completes the part beside `blob`, whose name is its sha256, and gives it its name. `get`: appends to a file from
    that byte of the content on. Raises FetchError for a wrong hash, which leaves nothing."""
    part = blob.with_name(f"{blob.name}.incomplete")
    if part.exists() and part.stat().st_size > size:
        part.unlink()
    while True:
        old = part.exists() and part.stat().st_size > 0
        _append(part, size, get)
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest == blob.name:
            os.replace(part, blob)
            return
        part.unlink()
        if not old:
            raise FetchError(f"{what}: what came has sha256 {digest}, allowed: {blob.name}; nothing of it was kept")


def _append(part: Path, size: int, get: Callable[[Any, int], None]) -> None:
    """Goes on with `part` to its end, also where a connection breaks, as long as something comes."""
    with part.open("ab") as file:
        while True:
            there = file.tell()
            try:
                get(file, there)
            except Exception:  # of two HTTP libraries, by the client's version
                if not there < file.tell() < size:
                    raise
            else:
                file.flush()
                os.fsync(file.fileno())
                return


def _is_wanted(name: str) -> bool:
    """Whether a file of a repository is read: weights, what describes them, and chat templates."""
    if "/" in name:
        return name.startswith(TEMPLATES) and name.endswith(".jinja")
    return name in JSON_FILES or name.endswith(".safetensors")


def _others(files: list[str]) -> str:
    return ", ".join(dict.fromkeys(tag_of(name) or name for name in whole_models(files)))


def _reason(error: Exception, offline: bool) -> str:
    name, first_line = type(error).__name__, (str(error).strip() or "no reason given").splitlines()[0]
    if offline:
        return "is not on this machine, and nothing is fetched offline"
    if name == "GatedRepoError":
        return "is gated: accept its terms on its page and log in (hf auth login, or HF_TOKEN)"
    if name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return "no such repository or revision, or it is private (hf auth login, or HF_TOKEN)"
    return f"cannot be fetched: {name}: {first_line}"
