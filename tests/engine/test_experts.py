"""Tiny mixtures of experts through the whole engine: who shares a step with a request never changes its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.tiny import dense_logits, write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")

PROMPTS = [[5, 9, 200], list(range(40)), [7], [65, 66, 67] * 11, *([i, i + 3, i + 8] * 8 for i in range(8))]
PARAMS = [
    SamplingParams(temperature=i % 2, max_tokens=24, seed=i, ignore_eos=True, logprobs=1) for i in range(len(PROMPTS))
]
Answer = tuple[list[int], list[float]]


def answers(directory: Path, *, rounds: int = 1, alone: bool = False, **options: Any) -> list[Answer]:
    """Tokens and logprobs of the last round."""
    base: dict[str, Any] = {"threads": 1, "num_kv_blocks": 129, "max_num_seqs": 16, "enable_prefix_caching": False}
    with LLM(str(directory), **{**base, **options}) as llm:
        for _ in range(rounds):
            groups = [[i] for i in range(len(PROMPTS))] if alone else [list(range(len(PROMPTS)))]
            outputs = [
                one
                for group in groups
                for one in llm.generate([PROMPTS[i] for i in group], [PARAMS[i] for i in group], use_tqdm=False)
            ]
        if "num_kv_blocks" in options:
            assert llm.stats().preemptions > 0
    return [(o.outputs[0].token_ids, [e.chosen.logprob for e in o.outputs[0].logprobs or []]) for o in outputs]


@pytest.fixture(scope="module", params=["mixtral", "qwen3-moe"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("formats", [{"dtype": "float32"}, {"quantization": "int8"}, {"quantization": "int4"}])
def test_company_changes_no_bit(directory: Path, formats: dict[str, Any]) -> None:
    alone = answers(directory, alone=True, **formats)
    assert len({tuple(tokens) for tokens, _ in alone}) == len(PROMPTS)
    schedules: list[dict[str, Any]] = [
        {},
        {"threads": 2},
        {"max_num_batched_tokens": 16},
        {"enable_prefix_caching": True, "rounds": 2},
        {"num_kv_blocks": 13, "max_model_len": 96},
    ]
    for how in schedules:
        assert answers(directory, **formats, **how) == alone, how


def test_a_packed_directory_says_the_same(directory: Path, tmp_path: Path) -> None:
    """`octavo quantize`: all experts of a layer are one packed tensor."""
    from octavo.runner.pack_directory import pack_directory  # needs the module

    pack_directory(directory, tmp_path, quantization="int4")
    assert answers(tmp_path) == answers(directory, quantization="int4")


def test_greedy_is_the_dense_truth(directory: Path) -> None:
    tokens = list(PROMPTS[0])
    for _ in range(8):
        tokens.append(int(dense_logits(directory, tokens)[-1].argmax()))
    with LLM(str(directory), dtype="float32", threads=1, num_kv_blocks=33, max_num_seqs=4) as llm:
        (out,) = llm.generate(
            [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False
        )
    assert out.outputs[0].token_ids == tokens[len(PROMPTS[0]) :]
