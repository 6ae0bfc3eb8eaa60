"""The alphabet of byte-level BPE: each of the 256 bytes is written as one printable character.

Printable Latin-1 bytes stand for themselves; the other 68 get the characters from U+0100 on, in order (a space is Ġ).
Source: the GPT-2 tokenizer's definition.
"""

from __future__ import annotations

from collections.abc import Mapping


def byte_of_char() -> Mapping[str, int]:
    """Character -> the byte it stands for (256 entries)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(hidden)})
    return table
