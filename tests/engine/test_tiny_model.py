"""The whole path on tiny random models: files, tokenizer, scheduler, computation, sampling, text."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams
from octavo.kernels.pages import huge_pages
from octavo.types import RequestOutput
from tests.tiny import dense_logits, write_tiny

Options = dict[str, Any]
EVERYWHERE: Options = {"num_kv_blocks": 65, "max_num_seqs": 8, "threads": 1}
PROMPTS = [[5, 9, 200], list(range(40)), [7], [65, 66, 67] * 11]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="module", params=["reference", "native"])
def options(request: pytest.FixtureRequest) -> Options:
    """Engine arguments of each executor that computes."""
    if request.param == "native":
        pytest.importorskip("octavo._native", reason="the native module is not built")
    return EVERYWHERE | {"executor": request.param, "dtype": "float32"}


@pytest.fixture(scope="module")
def llm(directory: Path, options: Options) -> Any:
    with LLM(str(directory), **options) as made:
        yield made


def log_softmax(row: Any) -> Any:
    row = row - row.max()
    return row - math.log(np.exp(row).sum())


def greedy_truth(directory: Path, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(dense_logits(directory, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [c.token_ids for o in outputs for c in o.outputs]


def test_greedy_is_the_dense_truth(llm: LLM, directory: Path) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)
    assert ids(outputs) == [greedy_truth(directory, p, 12) for p in PROMPTS]


def test_logprobs_are_the_dense_truth(llm: LLM, directory: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=4, prompt_logprobs=2)
    out = llm.generate(PROMPTS[1], params, use_tqdm=False)[0]
    tokens = PROMPTS[1] + out.outputs[0].token_ids
    truth = [log_softmax(row) for row in dense_logits(directory, tokens)]
    assert out.prompt_logprobs is not None and out.outputs[0].logprobs is not None
    assert len(out.prompt_logprobs) == len(PROMPTS[1]) and len(out.outputs[0].logprobs) == 3
    entries = [*out.prompt_logprobs[1:], *out.outputs[0].logprobs]
    for at, entry in enumerate(entries):
        assert entry is not None and entry.chosen.token == tokens[at + 1]
        assert entry.chosen.logprob == pytest.approx(truth[at][tokens[at + 1]], abs=1e-3)
        assert len(entry.top) == (2 if at + 1 < len(PROMPTS[1]) else 4)
        best = np.argsort(-truth[at])[: len(entry.top)]
        assert [t.logprob for t in entry.top] == pytest.approx([truth[at][i] for i in best], abs=1e-3)
        assert [t.rank for t in entry.top] == list(range(1, len(entry.top) + 1))


def test_a_seed_says_the_same_in_every_company(llm: LLM) -> None:
    params = [SamplingParams(temperature=1, max_tokens=10, ignore_eos=True, seed=i) for i in range(4)]
    together = ids(llm.generate(PROMPTS, params, use_tqdm=False))
    alone = [ids(llm.generate([p], q, use_tqdm=False))[0] for p, q in zip(PROMPTS, params, strict=True)]
    assert together == alone
    many = ids(llm.generate(PROMPTS[0], SamplingParams(temperature=1, max_tokens=10, seed=0, n=4), use_tqdm=False))
    assert len({tuple(one) for one in many}) == 4


def test_unseeded_answers_differ_and_an_engine_seed_repeats(directory: Path, options: Options, llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True)
    assert ids(llm.generate(PROMPTS[0], params, use_tqdm=False)) != ids(
        llm.generate(PROMPTS[0], params, use_tqdm=False)
    )
    runs = []
    for _ in range(2):
        with LLM(str(directory), seed=3, **options) as made:
            runs.append(ids(made.generate(PROMPTS, params, use_tqdm=False)))
    assert runs[0] == runs[1]


def test_prefix_hits_change_nothing(llm: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=8, seed=4, ignore_eos=True)
    llm.reset_prefix_cache()
    cold, warm = (llm.generate(PROMPTS[1], params, use_tqdm=False)[0] for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32)
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids


def test_a_pool_for_two_serves_twenty_with_the_same_answers(directory: Path, options: Options, llm: LLM) -> None:
    """R14: preempted and resumed sequences answer as if alone."""
    prompts = [[i, i + 1, i + 2] * 8 for i in range(12)]
    params = [SamplingParams(temperature=i % 2, max_tokens=40, seed=i, ignore_eos=True) for i in range(12)]
    free = ids(llm.generate(prompts, params, use_tqdm=False))
    with LLM(str(directory), **(options | {"num_kv_blocks": 9, "max_model_len": 112})) as tight:
        assert ids(tight.generate(prompts, params, use_tqdm=False)) == free
        assert tight.stats().preemptions > 0 and tight.stats().blocks_used == 0


def test_one_request_uses_the_whole_model_length_while_others_run(directory: Path, options: Options) -> None:
    """R31: the context is nobody's share of a slot; the others come and go beside it, and each answers as if alone."""
    prompts = [list(range(40)), *([i, i + 1, i + 2] * 8 for i in range(7))]
    lengths = [160 - 40, *[30] * 7]
    params = [SamplingParams(temperature=i % 2, max_tokens=n, seed=i, ignore_eos=True) for i, n in enumerate(lengths)]
    with LLM(str(directory), **(options | {"num_kv_blocks": 25, "max_model_len": 160, "max_num_seqs": 4})) as llm:
        together = ids(llm.generate(prompts, params, use_tqdm=False))
        stats = llm.stats()
        assert stats.steps < sum(lengths) and stats.blocks_used == 0
        assert [len(answer) for answer in together] == lengths
        assert [ids(llm.generate([p], q, use_tqdm=False))[0] for p, q in zip(prompts, params, strict=True)] == together


def test_int8_keys_and_values_answer_alike_in_every_company(directory: Path) -> None:
    """Alone, together, and preempted; and nearly what bfloat16 answers. (The reference gives values, not bits.)"""
    pytest.importorskip("octavo._native", reason="the native module is not built")
    int8 = EVERYWHERE | {"executor": "native", "dtype": "auto", "kv_cache_dtype": "int8"}
    prompts = [[i, i + 1, i + 2] * 8 for i in range(12)]
    params = [SamplingParams(temperature=i % 2, max_tokens=40, seed=i, ignore_eos=True, logprobs=1) for i in range(12)]

    def answers(llm: LLM, which: list[int]) -> list[tuple[list[int], list[float]]]:
        outputs = llm.generate([prompts[i] for i in which], [params[i] for i in which], use_tqdm=False)
        chosen = [o.outputs[0] for o in outputs]
        return [(c.token_ids, [e.chosen.logprob for e in c.logprobs or []]) for c in chosen]

    everyone = list(range(12))
    with LLM(str(directory), **int8) as llm:
        together = answers(llm, everyone)
        assert [answers(llm, [i])[0] for i in everyone] == together
    with LLM(str(directory), **(int8 | {"num_kv_blocks": 9, "max_model_len": 112})) as tight:
        assert answers(tight, everyone) == together
        assert tight.stats().preemptions > 0
    with LLM(str(directory), **(int8 | {"kv_cache_dtype": "bfloat16"})) as wider:
        off = [abs(a[1][0] - b[1][0]) for a, b in zip(answers(wider, everyone), together, strict=True) if a[0] == b[0]]
    assert off
    assert max(off) < 0.05


def test_bias_and_stop_ids(llm: LLM) -> None:
    forced = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logit_bias={42: 100.0})
    assert ids(llm.generate(PROMPTS[0], forced, use_tqdm=False)) == [[42] * 5]
    stopped = SamplingParams(temperature=0, max_tokens=5, logit_bias={42: 100.0}, stop_token_ids=(42,), min_tokens=3)
    out = llm.generate(PROMPTS[0], stopped, use_tqdm=False)[0].outputs[0]
    assert 42 not in out.token_ids[:2] and out.token_ids[-1] == 42 and out.stop_reason == 42


def test_chat_and_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6)
    (out,) = llm.chat([{"role": "user", "content": "hi <|im_end|>"}], params, use_tqdm=False)
    end = llm.tokenizer.token_id("<|im_end|>")
    assert end is not None and out.prompt_token_ids.count(end) == 1
    assert out.outputs[0].text == llm.tokenizer.decode(out.outputs[0].token_ids)


def test_the_engine_process_says_the_same(llm: LLM, directory: Path, options: Options) -> None:
    params = [SamplingParams(temperature=i % 2, max_tokens=9, seed=i, ignore_eos=True) for i in range(4)]
    expected = ids(llm.generate(PROMPTS, params, use_tqdm=False))

    async def run() -> list[list[int]]:
        async with await AsyncLLM.start(EngineArgs(model=str(directory), **options)) as made:
            assert made.model_names == [directory.name] and made.facts.architecture == "LlamaForCausalLM"

            async def one(prompt: list[int], params: SamplingParams) -> list[int]:
                return [o async for o in made.generate(prompt, params, stream=False)][-1].outputs[0].token_ids

            return await asyncio.gather(*(one(p, q) for p, q in zip(PROMPTS, params, strict=True)))

    assert asyncio.run(run()) == expected


def test_a_start_tells_of_huge_pages(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    if not huge_pages()[0]:
        pytest.skip("the system does not tell of 2 MiB pages")
    with caplog.at_level(logging.INFO, "octavo.runner.native"), LLM(str(directory), **EVERYWHERE):
        until = time.monotonic() + 10  # told by a thread: the start does not wait for it
        while "on 2 MiB pages" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    assert re.search(r"weights: \d+ MiB, (\d+|none) on 2 MiB pages", caplog.text)
