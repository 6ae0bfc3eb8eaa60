"""What callers may ask, and what the engine gets."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from octavo.config.resolve import EngineConfig, resolve
from octavo.errors import InvalidRequest, PromptTooLong
from octavo.facts import Facts
from octavo.llm.intake import Intake, derive_seed, pack_ids
from octavo.text.tokenizer import Tokenizer
from octavo.types import SamplingParams
from tests.unit.llm.conftest import ARGS


def test_text_and_ids_become_the_same_request(intake: Intake) -> None:
    text = intake.prepare("hi", SamplingParams())
    for prompt in ([104, 105], {"prompt_token_ids": [104, 105]}, {"prompt": "hi"}, (104, 105), array("i", [104, 105])):
        ids = intake.prepare(prompt, SamplingParams())
        assert ids.requests[0].prompt_ids == text.requests[0].prompt_ids == array("i", [104, 105]).tobytes()
        assert ids.prompt_ids == [104, 105]
    assert text.prompt == "hi"


def test_specials_in_text_stay_text_unless_asked(intake: Intake) -> None:
    assert 258 not in intake.prepare("<|im_start|>", SamplingParams()).prompt_ids
    assert intake.prepare("<|im_start|>", SamplingParams(), parse_special=True).prompt_ids == [258]


@pytest.mark.parametrize(
    "prompt", [b"bytes", 5, None, {"prompt": 5}, {}, {"prompt": "a", "prompt_token_ids": [1]}, {"text": "a"}, "", []]
)
def test_other_prompts_are_refused(intake: Intake, prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        intake.prepare(prompt, SamplingParams())


@pytest.mark.parametrize("bad", [-1, 320, 2**31, 2**63, True, 1.5, "a", None, [1]])
def test_ids_are_checked(intake: Intake, bad: Any) -> None:
    with pytest.raises(InvalidRequest, match="0 to 319"):
        intake.prepare([1, bad], SamplingParams())


def test_sampling_ids_are_checked(intake: Intake) -> None:
    with pytest.raises(InvalidRequest, match="stop_token_ids: got token id 320"):
        intake.prepare("a", SamplingParams(stop_token_ids=(320,)))
    with pytest.raises(InvalidRequest, match="logit_bias: got token id 5000"):
        intake.prepare("a", SamplingParams(logit_bias={5000: 1.0}))


def test_too_long_says_both_numbers(intake: Intake) -> None:
    intake.prepare([1] * 127, SamplingParams())
    with pytest.raises(PromptTooLong, match="got 128 tokens, allowed: up to 127"):
        intake.prepare([1] * 128, SamplingParams())
    with pytest.raises(PromptTooLong, match="got 100000 characters, allowed: up to 127 tokens"):
        intake.prepare("a" * 100_000, SamplingParams())


def test_max_tokens_is_left_to_the_scheduler_which_tells(intake: Intake) -> None:
    def granted(**fields: Any) -> int | None:
        return intake.prepare([1] * 28, SamplingParams(**fields)).requests[0].params.max_tokens

    assert granted(max_tokens=None) is None
    assert granted(max_tokens=1000) == 1000
    assert granted(max_tokens=99) == 99
    with pytest.raises(InvalidRequest, match="min_tokens"):
        granted(max_tokens=None, min_tokens=101)


def test_seed_is_drawn_once_and_n_derives(
    intake: Intake, tokenizer: Tokenizer, facts: Facts, config: EngineConfig
) -> None:
    prepared = intake.prepare("a", SamplingParams(n=3))
    seeds = [r.params.seed for r in prepared.requests]
    assert len(set(seeds)) == 3 and prepared.params.seed == seeds[0]
    assert all(0 <= s < 2**63 for s in seeds if s is not None) and None not in seeds
    assert len({r.prompt_ids for r in prepared.requests}) == 1
    assert len({r.seq_id for r in prepared.requests}) == 3
    assert all(r.params.n == 1 for r in prepared.requests)
    fixed = [r.params.seed for r in intake.prepare("a", SamplingParams(n=3, seed=-5)).requests]
    assert fixed == [derive_seed(-5, i) for i in range(3)] and fixed[0] == -5
    drawn = [
        Intake(tokenizer=tokenizer, facts=facts, config=config, seed=7).prepare("a", SamplingParams()).params.seed
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


def test_the_engine_sees_no_strings_and_scores_a_prompt_once(intake: Intake) -> None:
    prepared = intake.prepare("a", SamplingParams(n=2, stop=("x",), prompt_logprobs=1))
    assert prepared.params.stop == ("x",)
    assert [r.params.stop for r in prepared.requests] == [(), ()]
    assert [r.params.prompt_logprobs for r in prepared.requests] == [1, None]


def test_salts_separate(intake: Intake) -> None:
    def root(salt: str | None) -> bytes:
        return intake.prepare("a", SamplingParams(), cache_salt=salt).requests[0].root

    assert root(None) == b"" and root("a") == root("a") != root("b")
    for bad in ("", "x" * 257):
        with pytest.raises(InvalidRequest, match="cache_salt"):
            root(bad)


def test_priority_is_checked(intake: Intake, tokenizer: Tokenizer, facts: Facts) -> None:
    by_priority = msgspec.structs.replace(ARGS, scheduling_policy="priority")
    ranked = Intake(tokenizer=tokenizer, facts=facts, config=resolve(by_priority, facts))
    assert ranked.prepare("a", SamplingParams(), priority=-3).requests[0].priority == -3
    assert intake.prepare("a", SamplingParams(), priority=0).requests[0].priority == 0
    bad: Any
    for bad in (2**40, True, None, 1.0, "1"):
        with pytest.raises(InvalidRequest, match=r"priority: got .*, allowed: an integer from -2147483648"):
            ranked.prepare("a", SamplingParams(), priority=bad)
    with pytest.raises(InvalidRequest, match=r"priority: got 5, allowed: 0 .*--scheduling-policy priority"):
        intake.prepare("a", SamplingParams(), priority=5)


def test_integer_likes_are_taken() -> None:
    class Index:
        def __index__(self) -> int:
            return 3

    like: Any = Index()
    assert list(pack_ids([like, 4], vocab_size=5)) == [3, 4]
