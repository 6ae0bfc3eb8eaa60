"""Texts that tell tokenizers apart: code, emoji, CJK, combining marks, long digit runs, spaces, mixed scripts."""

from __future__ import annotations

import random
from pathlib import Path

LICENCE = (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8").splitlines()
# fmt: off
BY_HAND = [
    "", " ", "  ", "   a", "a  ", " a b  c ", "\n", "\n\n\n ", "\t\t x", " \n ", "a\r\nb\r\n\r\n", "Hello, world!",
    "def f(x):\n    return x**2  # square\n\n\n\tif x:\n\t\tpass\n", 'printf("%d\\n", i); /* x */ a[i]->b;',
    "https://example.org/a?b=c&d=e#f", "1234567890123456789012345678901234567890", "3.14 2,000,000 1e-10 0xDEADBEEF",
    "a1b22c333 4444", "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽", "日本語のテキスト、漢字とかな。中文文本！한국어",
    "Ελληνικά кириллица עברית العربية हिन्दी ไทย",
    "naïve cafe\u0301 A\u030a \u1e9b\u0323 ﬁ ½ Ⅳ ㎏", "I'm you're HE'S can't O'Brien's",
    "CamelCase HTTPServer snake_case XÉlan",
    "a\u00a0b\u2003c\u200bd\u3000e", "\x00\x01\x7f\x85\u2028", "…—“”«»", "x" * 99, "1" * 50, " " * 40,
    "🇩🇪🇫🇷", "\ufffd\ufeffa",
    "<tool>a</s> <s>[INST] <0x0A> <unk>", "𝔘𝔫𝔦 𝕿", "ǅ ʰ ʔ", "$100 + 20% = ~120 | ^x^ <y> `z`", "\\n //// \n/\n",
]
# fmt: on
_POOL = [
    *"aebXYZ019 .,'!?-_/\\\n\t\r",
    "  ",
    "\n\n",
    "é",
    "e\u0301",
    "日",
    "本",
    "Ж",
    "я",
    "😀",
    "ع",
    "क",
    "्",
    "\u00a0",
    "'s",
    "'LL",
    "<",
    "ﬁ",
]


def mixed_texts(count: int = 120) -> list[str]:
    """The ones above, lines of the licence, and `count` mixtures; the same at every call."""
    draw = random.Random(5)
    mixtures = ["".join(draw.choices(_POOL, k=draw.randint(1, 40))) for _ in range(count)]
    return [*BY_HAND, *LICENCE[:20], *mixtures]
