"""Small SentencePiece models, trained here, with the ids that the sentencepiece package gives.

python -m tests.oracle.spm_reference       writes tests/data/spm/ anew
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.texts import LICENCE, mixed_texts

FOLDER = Path(__file__).parents[1] / "data" / "spm"
MODELS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False},
    "bpe-no-prefix": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<tool>"],
    },
    "unigram": {"model_type": "unigram", "byte_fallback": False},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "user_defined_symbols": ["<tool>"]},
}
"""Name -> arguments of the trainer."""


def train(name: str) -> bytes:
    """The protobuf of a model with 512 pieces and one rule of normalisation (ﬁ is fi)."""
    import sentencepiece

    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        rules.write("FB01\t66 69\n")
        rules.flush()
        arguments: dict[str, Any] = {"vocab_size": 512, "control_symbols": ["[INST]"], "character_coverage": 0.999}
        arguments["normalization_rule_tsv"] = rules.name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LICENCE), model_writer=written, minloglevel=2, **{**arguments, **MODELS[name]}
        )
    return written.getvalue()


def ids_of(data: bytes, texts: list[str]) -> list[list[int]]:
    """What the package gives."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    found: list[list[int]] = processor.encode(texts)
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        data = train(name)
        found = {"model": base64.b64encode(data).decode(), "ids": ids_of(data, mixed_texts())}
        (FOLDER / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
