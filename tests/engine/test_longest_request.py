"""The longest request of models with windows, from their files to their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import PromptTooLong
from tests.tiny import write_tiny

BLOCK, BLOCKS = 16, 8


@pytest.mark.parametrize(
    ("family", "fields", "kinds", "longest"),
    [
        ("mistral", {}, {"sliding"}, 256),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, {"sliding", "full"}, 32),
    ],
    ids=["sliding", "mixed"],
)
def test_it_is_what_the_pool_holds_and_runs(
    tmp_path: Path, family: str, fields: dict[str, Any], kinds: set[str], longest: int
) -> None:
    directory = write_tiny(tmp_path, family, sliding_window=24, max_position_embeddings=256, **fields)
    with LLM(
        str(directory), executor="reference", num_kv_blocks=BLOCKS + 1, max_num_seqs=2, max_num_batched_tokens=16
    ) as llm:
        assert {group.kind for group in llm.facts.groups} == kinds
        assert llm.config.max_model_len == llm.config.scheduler.max_model_len == longest
        assert kinds == {"sliding", "full"} or longest > BLOCKS * BLOCK
        params = SamplingParams(max_tokens=1000, ignore_eos=True, temperature=0)
        (output,) = llm.generate([[5] * (longest - 4)], params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 4 and llm.stats().clamped == 1
        with pytest.raises(PromptTooLong, match=f"the longest sequence here is {longest} tokens"):
            llm.generate([[5] * longest], params, use_tqdm=False)
