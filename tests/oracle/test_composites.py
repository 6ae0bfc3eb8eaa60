"""Models that see images, made whole by transformers: Octavo's logits of their text model are theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.program.interpret import load_weights
from octavo.runner.opened import open_model
from tests.models.harness import all_logits, lowered
from tests.oracle.models import oracle_logits, prompt
from tests.oracle.variants import VOCAB

torch = pytest.importorskip("torch", reason="the oracle extra is not installed: torch")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed: transformers")

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
LAST = {"image_token_index": VOCAB - 1}
WHOLES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**TEXT, "sliding_window": 16, "query_pre_attn_scalar": 16},
        "vision_config": IMAGES,
        "mm_tokens_per_image": 4,
        **LAST,
    },
    "mistral3": {
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {**IMAGES, "model_type": "pixtral"},
        **LAST,
    },
    "mistral3 untied": {
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {**IMAGES, "model_type": "pixtral"},
        "tie_word_embeddings": False,
        **LAST,
    },
}
"""model_type -> config."""


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_model_is_transformers(tmp_path: Path, name: str) -> None:
    """Prompts below and past the window; 2e-5 of a logit, 5e-5 of their deviation."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name.partition(" ")[0], **WHOLES[name])
    model = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * (0.02 if value.dim() < 2 else 0.05))
    model.save_pretrained(tmp_path)
    checkpoint = open_model(tmp_path)
    assert "vision_tower" in checkpoint.notes[0]
    spec = lowered(checkpoint)
    weights = load_weights(spec, checkpoint.tensors)
    for length in (10, 200):
        ids = prompt(length, seed=length)
        want = oracle_logits(model, ids)
        error = float(np.abs(all_logits(spec, weights, ids, chunk=64) - want).max())
        assert error < min(2e-5, 5e-5 * float(want.std()))
