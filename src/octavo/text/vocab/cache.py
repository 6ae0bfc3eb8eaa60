"""Built tokenizers kept in the user's cache: joining scores into merges takes seconds for 262,144 pieces, reading a
built tokenizer back takes one.

    <user cache>/octavo/tokenizers/<key>.tok     "octavo tokenizer 3\\n" | blake2b-128 of what follows | JSON

The key holds the vocabulary's identity and the version of the `tokenizers` package. A file is written beside its place
and moved there, so readers see all of it or none; one that does not match its digest is built anew. The least recently
used files go when all of them take more than MAX_BYTES. A cache that cannot be read or written is no error.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

from octavo.obs.log import get_logger

log = get_logger(__name__)

MAGIC = b"octavo tokenizer 3\n"
"""The number rises when the same vocabulary comes out different: files of before are built anew."""
DIGEST = 16
HOUR = 3600.0
MAX_BYTES = 128_000_000
"""Of all kept tokenizers together; the largest vocabularies take 8 MB."""


class TokenizerCache:
    """Kept tokenizers under one folder. Safe for several processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str) -> str | None:
        """The JSON kept under `key`, or None where there is none or it is damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[len(MAGIC) + DIGEST :]
        if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : len(MAGIC) + DIGEST] != _digest(body):
            log.info("%s: damaged; it is built anew", path)
            return None
        try:
            os.utime(path)  # the order of eviction
        except OSError:
            pass
        return body.decode()

    def store(self, key: str, json: str) -> None:
        """Keep `json` under `key`."""
        body = json.encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines((MAGIC, _digest(body), body))
                os.replace(name, self._path(key))
            except BaseException:
                os.unlink(name)
                raise
            self._evict(keep=self._path(key))
        except OSError as error:
            log.debug("%s: the tokenizer is not kept: %s", self.folder, error)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.tok"

    def _evict(self, *, keep: Path) -> None:
        for part in self.folder.glob("*.part"):  # of writers that were killed
            if part.stat().st_mtime < time.time() - HOUR:
                part.unlink(missing_ok=True)
        files = [(path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*.tok")]
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= MAX_BYTES:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST).digest()


def user_folder() -> Path:
    """Where tokenizers are kept: XDG_CACHE_HOME or ~/.cache, /octavo/tokenizers."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "octavo" / "tokenizers"
