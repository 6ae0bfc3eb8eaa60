"""Fetching from Hugging Face: the only file that talks to huggingface-hub. What was cut short is continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import FetchError
from octavo.weights.gguf_parts import part_names
from octavo.weights.tags import choose_file, tag_of, whole_models

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
            snapshot = Path(hub.snapshot_download(repo, **where))
            files = sorted(str(file.relative_to(snapshot)) for file in snapshot.rglob("*") if file.is_file())
        else:
            files = hub.list_repo_files(repo, revision=revision)
        name = choose_file(repo, choice, files)
        if name is not None:
            if not choice and len(whole_models(files)) > 1:
                say(f"{repo}: taking {tag_of(name) or name}; {repo}:TAG chooses another of {_others(files)}")
            parts = [Path(hub.hf_hub_download(repo, part, **where)) for part in part_names(name)]
            return parts[0]
        wanted = [name for name in files if _is_wanted(name)]
        return Path(hub.snapshot_download(repo, allow_patterns=wanted, **where))
    except FetchError:
        raise
    except Exception as error:  # the client's many network errors, and its own
        raise FetchError(f"{repo}: {_reason(error, offline)}") from None


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
