"""How text is cut before byte-level BPE, by the name a GGUF file gives it in `tokenizer.ggml.pre`.

GGUF keeps only a name; the rule behind it is the original tokenizer's. A wrong rule does not fail, it gives slightly
different ids (and a worse model), so an unknown name is an error.

Regular expressions are applied one after another: each cuts what the ones before it left, into its matches and the
pieces between them. Sources: the tokenizer.json of the models that a name was made for.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
QWEN2 = _WORDS + DIGIT + _OTHERS
QWEN35 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
LLAMA3 = _WORDS + r"\p{N}{1,3}" + _OTHERS

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES


def _cased(suffix: str) -> str:
    """Words cut where their case changes: HTTPServer is HTTP|Server. `suffix`: what may stand after each."""
    head = r"[^\r\n\p{L}\p{N}]?"
    return f"{head}{_UPPER}*{_LOWER}+{suffix}|{head}{_UPPER}+{_LOWER}*{suffix}|"


TEKKEN = _cased("") + DIGIT + _SLASHES
GPT4O = _cased(_SUFFIX + "?") + r"\p{N}{1,3}" + _SLASHES

# Letters with case, as the original lists them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    DIGIT,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGIT)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One rule: what happens to text before BPE sees it."""

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges say."""
    add_bos: bool = False
    """What a file that does not say means."""


_RULES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer(DEFAULT)),
    (
        "gpt-2 phi-2 olmo mpt jais exaone4 trillion granite-docling gigachat a.x-4.0 mellum",
        PreTokenizer((GPT2,)),
    ),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", PreTokenizer((DIGIT, GPT2))),
    ("qwen2 deepseek-r1-qwen", PreTokenizer((QWEN2,), nfc=True)),
    # Known from llama.cpp alone, which normalizes nothing.
    ("kormo f2llmv2 megrez", PreTokenizer((QWEN2,))),
    ("qwen35", PreTokenizer((QWEN35,), nfc=True)),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((LLAMA3,))),
    ("glm4", PreTokenizer((LLAMA3,), ignore_merges=True)),
    ("tekken", PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie", PreTokenizer((GPT4O,))),
    ("deepseek-llm", PreTokenizer(DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer(DEEPSEEK_CODER)),
    ("deepseek-v3", PreTokenizer(DEEPSEEK_V3)),
    ("falcon", PreTokenizer(FALCON)),
)
PRE_TOKENIZERS = {name: rule for names, rule in _RULES for name in names.split()}
"""Name in the file -> rule. Granite 3 writes refact; OLMo 2 and Phi-4 dbrx; Phi-4-mini gpt-4o; SmolLM3 smaug-bpe;
Mistral's newer models tekken."""


def find(name: str) -> PreTokenizer:
    """The rule of that name. Raises ModelError for one we do not know."""
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=1)
        nearest = f"; the nearest is {near[0]!r}" if near else ""
        raise ModelError(f"tokenizer.ggml.pre: got {name!r}, allowed: {', '.join(PRE_TOKENIZERS)}{nearest}")
    return rule


def install(rule: PreTokenizer, backend: Backend) -> None:
    """Sets the normalizer, pre-tokenizer and decoder of `backend`."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    # The package has these two rules of its own, which take two thirds of the time.
    gpt2 = rule.splits[-1] == GPT2
    steps: list[Any] = [
        pre_tokenizers.Digits(individual_digits=True)
        if regex == DIGIT
        else pre_tokenizers.Split(Regex(regex), behavior="isolated")
        for regex in rule.splits[: -1 if gpt2 else None]
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
