"""What transformers takes for keys that a config.json leaves out is still what tests/recorded_defaults.py says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recorded_defaults import RECORDED, SIZES

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed: transformers")


def defaults(model_type: str) -> dict[str, Any]:
    """A row of RECORDED."""
    config = transformers.AutoConfig.for_model(model_type, **SIZES)
    found = config.to_dict()
    rope = found["rope_parameters"]
    windows = found.get("use_sliding_window", True)
    return {
        "hidden_act": found.get("hidden_act") or found["hidden_activation"],
        "head_dim": found.get("head_dim") or SIZES["hidden_size"] // SIZES["num_attention_heads"],
        "rope_theta": rope.get("full_attention", rope)["rope_theta"],
        "sliding_window": found.get("sliding_window") if windows else None,
        **{key: found.get(key) for key in KEYS},
    }


KEYS = (
    *("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads"),
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
    "original_max_position_embeddings",
)


@pytest.mark.parametrize("model_type", RECORDED)
def test_recorded(model_type: str) -> None:
    stated = {key: value for key, value in defaults(model_type).items() if value is not None}
    assert stated == RECORDED[model_type]
