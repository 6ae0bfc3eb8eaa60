"""API keys: who may call. Keys are compared as digests in constant time and appear in no log (S07, S08)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from octavo.errors import Unauthorized


class Keys:
    """The accepted keys. With none, everybody may call."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: bytes | None) -> str | None:
        """A tag of the caller's key (not the key), or None where no keys are asked for.

        `Bearer KEY`, or `Basic` with the key as password, which is what a browser sends for the page at `/`.
        Raises: Unauthorized.
        """
        if not self._digests:
            return None
        given = _digest(_presented(authorization or b""))
        found: str | None = None
        for digest in self._digests:  # all of them, whatever the first says
            if hmac.compare_digest(digest, given):
                found = digest.hex()
        if found is None:
            what = "a wrong key" if authorization else "no key"
            raise Unauthorized(f"API key: got {what}, allowed: the header 'Authorization: Bearer KEY' with a valid key")
        return found


def _presented(authorization: bytes) -> bytes:
    scheme, _, rest = authorization.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"bearer":
        return rest
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(b"octavo key\0" + key).digest()
