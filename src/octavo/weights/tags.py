"""Which GGUF file of several a user means: quantisation tags, split files, and a choice where nothing was said.

m-Q4_K_M.gguf                       tag Q4_K_M
Q6_K/m-Q6_K-00001-of-00002.gguf     tag Q6_K, the first of two parts
mmproj-m-F16.gguf                   a vision projector: no model
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from octavo.errors import FetchError
from octavo.weights.gguf_parts import part_names

TAG = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:IQ[1-4]_(?:XXS|XS|NL|S|M)|Q\d_K(?:_(?:XXS|XS|XL|S|M|L))?|Q4_0_\d_\d|Q\d_[01]"
    r"|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?![A-Za-z0-9]|_\d)",
    re.IGNORECASE,
)
NO_MODEL = ("mmproj", "imatrix")
"""How names of GGUF files begin, or end, that hold something else."""

PREFERRED = (
    *("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "Q4_K", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4", "MXFP4_MOE"),
    *("Q5_K_M", "Q5_K_S", "Q5_K", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
    *("BF16", "F16", "F32"),
)
"""What `org/repo` alone takes: four bits first (they run well everywhere), then more, then fewer, then floats."""


def is_model(name: str) -> bool:
    """Whether a file name is a GGUF model's (a projector or an importance matrix is none)."""
    stem = PurePosixPath(name).name.lower()
    if not stem.endswith(".gguf"):
        return False
    return not any(stem.startswith(word) or stem.endswith(f"{word}.gguf") for word in NO_MODEL)


def tag_of(name: str) -> str:
    """The quantisation tag in a file's name, in upper case, else that of its folder; "" where there is none."""
    for part in reversed(PurePosixPath(name).parts):
        found = TAG.findall(part)
        if found:
            return str(found[-1]).upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def whole_models(names: Sequence[str]) -> list[str]:
    """One name a model (the first part stands for a split file), in order; split files that lack one are left out."""
    known = set(names)
    firsts = dict.fromkeys(part_names(name)[0] for name in names if is_model(name))
    return [first for first in firsts if known.issuperset(part_names(first))]


def matching(choice: str, models: Sequence[str]) -> list[str]:
    """The models that `choice` may mean, by the first rule that finds any: the name; the tag; a whole word of the
    name; a part of the name. Case does not matter."""
    want = choice.lower()
    base = {name: PurePosixPath(name).name.lower() for name in models}
    tag = tag_of(f"{choice}.gguf") if TAG.fullmatch(choice) else choice.upper()
    word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(want)}(?![A-Za-z0-9_])")
    rules = (
        [n for n in models if n == choice],
        [n for n in models if want in (base[n], base[n].removesuffix(".gguf"), *map(str.lower, part_names(n)))],
        [n for n in models if tag_of(n) == tag],
        [n for n in models if word.search(base[n])],
        [n for n in models if want in base[n]],
    )
    return next((found for found in rules if found), [])


def preferred(models: Sequence[str]) -> str | None:
    """The model taken where no tag was given: the first of PREFERRED that exactly one has; None if there is none."""
    for tag in PREFERRED:
        found = [name for name in models if tag_of(name) == tag]
        if len(found) == 1:
            return found[0]
    return models[0] if len(models) == 1 else None


def choose_file(repo: str, choice: str, files: Sequence[str]) -> str | None:
    """The GGUF file of a repository that `choice` means (a split file's first part); None for the safetensors model.
    Raises FetchError that lists what there is."""
    models = whole_models(files)
    if not choice or choice.lower() == "latest":
        return _unasked(repo, models, files)
    found = matching(choice, models)
    if len(found) == 1:
        return found[0]
    if not found and choice in files:
        raise FetchError(f"{repo}: got {choice!r}, which is no GGUF model; there are {listed(models) or 'none'}")
    got = "several files match" if found else "no GGUF file matches"
    raise FetchError(f"{repo}: {got} {choice!r}; there are {listed(found or models) or 'none'}")


def _unasked(repo: str, models: Sequence[str], files: Sequence[str]) -> str | None:
    if "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return None
    if found := preferred(models):
        return found
    if models:
        raise FetchError(f"{repo}: several GGUF files; choose one as {repo}:TAG of {listed(models)}")
    if any(is_model(file) for file in files):
        raise FetchError(f"{repo}: parts of its split GGUF file are missing")
    pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth"))]
    why = "it has pickled weights, which can run code and are not read" if pickled else "it has neither"
    raise FetchError(f"{repo}: no model.safetensors with config.json and no GGUF file: {why}")


def listed(models: Sequence[str]) -> str:
    """Tags, each with its file; names alone where a tag is missing or not unique."""
    tags = [tag_of(name) for name in models]
    short = all(tags) and len(set(tags)) == len(tags)
    words = [f"{tag} ({name})" if short else name for tag, name in zip(tags, models, strict=True)]
    more = f" and {len(words) - 24} more" if len(words) > 24 else ""
    return ", ".join(words[:24]) + more
