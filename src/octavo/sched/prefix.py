"""Names for prefixes: a chain of keyed hashes, and promises of blocks that are being computed.

    parent(0) = H(key, "root", root)            root = the request's opaque bytes: tenant salt, adapter, rope choice
    name(i)   = H(key, "block", name(i - 1) + tokens of block i)

H is blake2b with 32 bytes of output and a secret key: nobody can make two prefixes meet, so ids need no comparing, and
a name tells nothing about the tokens. Roots and blocks have domains of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.sched.sequence import Sequence

DIGEST = 32


class PrefixHasher:
    """Extends a sequence's list of names; each block is hashed once in a sequence's life."""

    def __init__(self, key: bytes, *, block_size: int) -> None:
        self._block_size = block_size
        self._root = hashlib.blake2b(digest_size=DIGEST, key=key, person=b"octavo.root")
        self._block = hashlib.blake2b(digest_size=DIGEST, key=key, person=b"octavo.block")

    def root(self, root: bytes) -> bytes:
        """The parent of a sequence's first block."""
        state = self._root.copy()
        state.update(root)
        return state.digest()

    def name(self, seq: Sequence, index: int) -> bytes:
        """The name of block `index`, whose tokens must all be known."""
        names, size = seq.names, self._block_size
        while len(names) <= index:
            start = len(names) * size
            state = self._block.copy()
            state.update(names[-1] if names else seq.root)
            state.update(seq.tokens[start : start + size].tobytes())
            names.append(state.digest())
        return names[index]


class Promises:
    """Prefix blocks that a running prompt will compute in later steps, and who waits for them.

    Without it a newcomer admitted while a shared prompt is half computed would compute the other half again. It is
    parked instead, outside the queue, until the block it lacks is published or its promiser gives up.
    """

    def __init__(self) -> None:
        self._by_name: dict[bytes, Sequence] = {}
        self._parked: dict[bytes, list[Sequence]] = {}
        self._woken: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def make(self, seq: Sequence, names: Iterable[bytes]) -> None:
        """`seq` will compute these blocks. A name somebody else has promised stays theirs."""
        for name in names:
            if self._by_name.setdefault(name, seq) is seq:
                seq.promised.append(name)

    def is_promised(self, seq: Sequence, name: bytes) -> bool:
        """True where somebody who is served no later than `seq` is about to compute this block."""
        promiser = self._by_name.get(name)
        return promiser is not None and promiser.level <= seq.level

    def park(self, seq: Sequence, name: bytes) -> None:
        """Waits for a promised name; the caller has taken `seq` out of the queue."""
        self._parked.setdefault(name, []).append(seq)

    def keep(self, name: bytes) -> None:
        """The block is published: whoever waited for it may be looked at again."""
        if self._by_name.pop(name, None) is not None:
            self._woken += self._parked.pop(name, ())

    def drop(self, seq: Sequence) -> None:
        """`seq` will not compute what it promised and has not kept."""
        for name in seq.promised:
            if self._by_name.get(name) is seq:
                del self._by_name[name]
                self._woken += self._parked.pop(name, ())
        seq.promised.clear()

    def woken(self) -> list[Sequence]:
        """Those to put back into the queue; each is given once. Some may have been aborted while parked."""
        if not self._woken:
            return []
        woken, self._woken = self._woken, []
        return woken

    def check_idle(self) -> None:
        assert not self._by_name and not self._parked
