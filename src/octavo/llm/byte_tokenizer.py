"""The tokenizer of the fake executor: one id a byte, a few specials, and words. No file, no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.engine.fake import BOS, EOS, SPECIALS, VOCAB_SIZE

FIRST_WORD = max(SPECIALS) + 1


class ByteTokenizer:
    """As text.Tokenizer. Ids 0-255 are bytes, 256-259 specials, the rest words (" w0", " w1", …) no text encodes to."""

    vocab_size = VOCAB_SIZE
    bos_id: int | None = BOS
    eos_ids: tuple[int, ...] = (EOS,)
    special_ids = frozenset(SPECIALS)
    add_bos = False
    strip_start = False

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """UTF-8 bytes; with `parse_special` the specials' texts become their ids."""
        ids: list[int] = [BOS] if (self.add_bos if add_bos is None else add_bos) else []
        if not parse_special:
            return ids + list(text.encode())
        while text:
            found = [(at, i, s) for i, s in SPECIALS.items() if (at := text.find(s)) >= 0]
            if not found:
                break
            at, special, name = min(found)
            ids += [*text[:at].encode(), special]
            text = text[at + len(name) :]
        return ids + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Invalid UTF-8 becomes U+FFFD."""
        return b"".join(self._pieces(ids, skip_special_tokens)).decode(errors="replace")

    def _pieces(self, ids: Iterable[int], skip: bool) -> Iterable[bytes]:
        return (self.token_bytes(i) for i in ids if not (skip and i in SPECIALS))

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to a text."""
        if token < 256:
            return bytes([token])
        if token in SPECIALS:
            return SPECIALS[token].encode()
        return b" w%d" % (token - FIRST_WORD)

    def token_id(self, text: str) -> int | None:
        """The special token spelled so, if there is one."""
        return next((i for i, s in SPECIALS.items() if s == text), None)

    def token_text(self, token: int) -> str:
        """For people."""
        return self.token_bytes(token).decode(errors="replace")
