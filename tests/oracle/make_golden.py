"""Asks transformers for the logits in tests/data/family-logits.json: `python -m tests.oracle.make_golden`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.golden import FILE, write_golden
from tests.oracle.models import oracle_logits, prompt
from tests.oracle.variants import BASE, VARIANTS, Variant

os.environ["HF_HUB_OFFLINE"] = "1"
TOLD = {name: variant for name, variant in VARIANTS.items() if not variant.said}
"""Weights are made from what a config says: it must be true."""
KEPT = 8
"""Vocabulary entries kept of a position."""


def entry(variant: Variant, directory: Path) -> dict[str, Any]:
    """One variant's config and logits."""
    import transformers

    made = transformers.AutoConfig.for_model(variant.model_type, **{**BASE, **variant.config})
    config = {key: value for key, value in made.to_dict().items() if value is not None}
    for noise in ("transformers_version", "_attn_implementation", "chunk_size_feed_forward", "id2label", "label2id"):
        config.pop(noise, None)
    write_golden(directory, config)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype="float32"
    ).eval()
    length = 200 if 200 in variant.lengths else variant.lengths[-1]
    ids = prompt(length, seed=1)
    logits = oracle_logits(model, ids)
    positions = sorted({0, 1, 17, 39, length // 2, length - 2, length - 1})
    columns = np.linspace(0, logits.shape[1] - 1, KEPT).astype(int).tolist()
    return {
        "config": config,
        "ids": ids,
        "max_len": variant.max_len,
        "spread": round(float(logits.std()), 4),
        "columns": columns,
        "logits": {str(p): [round(float(logits[p, c]), 6) for c in columns] for p in positions},
    }


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, variant in TOLD.items():
            found[name] = entry(variant, Path(folder) / name)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    FILE.write_text("{\n" + lines + "\n}\n")
    print(f"{FILE}: {len(found)} variants, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
