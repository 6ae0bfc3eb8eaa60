"""`LLM` on the fake executor: the whole front half and the whole scheduler."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config.args import EngineArgs
from octavo.engine.build import Engine
from octavo.engine.core import EngineCore
from octavo.engine.fake import fake_facts, fake_front
from octavo.errors import ConfigError, EngineDead, InvalidRequest, PromptTooLong
from octavo.llm.offline import engine_args
from octavo.types import FinishReason, RequestOutput, StepPlan
from tests.engine.conftest import fake_args

PROMPTS = ["Hello, my name is", "The capital of France is", "a" * 200, "b"]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [c.text for o in outputs for c in o.outputs]


def test_three_lines(llm: LLM) -> None:
    """Row A1 of the article: the three lines run with the import changed."""
    outputs = llm.generate(["Hello, my name is"], SamplingParams(temperature=0.8, top_p=0.95))
    assert len(outputs[0].outputs[0].token_ids) <= 16 and outputs[0].outputs[0].text
    assert outputs[0].prompt == "Hello, my name is" and outputs[0].finished


def test_forms_of_prompts(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0)
    ids = list(b"Hello")
    ways: list[Any] = ["Hello", ids, {"prompt": "Hello"}, {"prompt_token_ids": ids}, ["Hello"], [ids]]
    answers = [llm.generate(way, params, use_tqdm=False) for way in ways]
    assert all(len(a) == 1 and a[0].outputs[0].token_ids == answers[0][0].outputs[0].token_ids for a in answers)
    assert llm.generate([], params, use_tqdm=False) == []


def test_outputs_come_in_order_of_prompts_and_do_not_depend_on_the_batch(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=5 + 30 * i, ignore_eos=True, seed=3) for i in range(4)]
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    alone = [llm.generate(p, q, use_tqdm=False)[0] for p, q in zip(PROMPTS, params, strict=True)]
    assert texts(together) == texts(alone)
    assert [len(o.outputs[0].token_ids) for o in together] == [5, 35, 65, 95]
    assert [o.prompt for o in together] == PROMPTS


def test_stream_joins_to_generate(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0)
    whole = llm.generate("abc", params, use_tqdm=False)[0].outputs[0]
    parts = list(llm.stream("abc", params))
    assert "".join(p.outputs[0].delta for p in parts) == whole.text
    assert [i for p in parts for i in p.outputs[0].delta_ids] == whole.token_ids
    assert len(parts) == 40 and [p.finished for p in parts] == [False] * 39 + [True]


def test_dropping_a_stream_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(max_tokens=1000, ignore_eos=True, temperature=0, n=3))
    next(stream)
    stream.close()
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_a_stream_that_nobody_asks_takes_no_place(llm: LLM, closed: bool) -> None:
    params = SamplingParams(max_tokens=1000, ignore_eos=True, temperature=0, n=2)
    for _ in range(3):
        stream = llm.stream("abc", params)
        if closed:
            stream.close()
        del stream
    waiting = llm.stream("abc", SamplingParams(max_tokens=5, ignore_eos=True))
    llm.generate("ab", SamplingParams(max_tokens=3), use_tqdm=False)
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.blocks_used, llm._outputs.num_open) == (0, 0, 0, 0)
    assert len(list(waiting)) == 5, "it runs when it is asked"


def test_what_a_stream_cannot_run_is_told_at_the_call(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="got token id 10000"):
        llm.stream([1, 2, 10_000])
    with pytest.raises(PromptTooLong):
        llm.stream([1] * 5000)


def test_a_stream_counts_its_time_from_its_first_item(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(max_tokens=2, ignore_eos=True))
    time.sleep(1.0)
    began, before = time.monotonic(), llm.metrics.e2e.mean
    list(stream)
    assert before == 0.0 and llm.metrics.e2e.mean <= time.monotonic() - began


def test_streams_interleave(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
    alone = [llm.generate(p, params, use_tqdm=False)[0].outputs[0].text for p in ("ab", "cd")]
    one, two = llm.stream("ab", params), llm.stream("cd", params)
    got = ["", ""]
    for a, b in zip(one, two, strict=False):
        got = [got[0] + a.outputs[0].delta, got[1] + b.outputs[0].delta]
    got = [got[0] + "".join(p.outputs[0].delta for p in one), got[1] + "".join(p.outputs[0].delta for p in two)]
    assert got == alone


def test_threads_may_share(llm: LLM) -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True, temperature=0)
    alone = texts(llm.generate(PROMPTS, params, use_tqdm=False))
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(texts(llm.generate(PROMPTS, params, use_tqdm=False))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 3


def test_n_answers_share_a_prompt(llm: LLM) -> None:
    prompt = "x" * 100
    out = llm.generate(prompt, SamplingParams(n=3, max_tokens=6, ignore_eos=True, temperature=0), use_tqdm=False)[0]
    assert [c.index for c in out.outputs] == [0, 1, 2] and all(len(c.token_ids) == 6 for c in out.outputs)
    hits = llm.stats().prefix_hits
    assert hits == 2 * 96, "two of three find the prompt's six full blocks"


def test_stop_string_ends_early_and_frees(llm: LLM) -> None:
    free = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0)
    text = llm.generate("abc", free, use_tqdm=False)[0].outputs[0].text
    stop = text[20:23]
    cut = llm.generate(
        "abc", SamplingParams(max_tokens=60, ignore_eos=True, temperature=0, stop=(stop,)), use_tqdm=False
    )[0].outputs[0]
    assert cut.text == text[: text.index(stop)] and cut.stop_reason == stop and cut.finish_reason is FinishReason.STOP
    assert len(cut.token_ids) < 60
    assert llm.stats().blocks_used == 0 and llm.stats().running == 0


def test_stop_ids_and_eos(llm: LLM) -> None:
    ids = (
        llm.generate("abc", SamplingParams(max_tokens=60, ignore_eos=True, temperature=0), use_tqdm=False)[0]
        .outputs[0]
        .token_ids
    )
    stop = ids[10]
    cut = llm.generate(
        "abc", SamplingParams(max_tokens=60, ignore_eos=True, temperature=0, stop_token_ids=(stop,)), use_tqdm=False
    )[0].outputs[0]
    assert cut.token_ids == ids[: ids.index(stop) + 1] and cut.stop_reason == stop


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=1, ignore_eos=True, temperature=0)
    out = llm.generate("abcdef", params, use_tqdm=False)[0]
    logprobs, scores = out.outputs[0].logprobs, out.prompt_logprobs
    assert logprobs is not None and [e.chosen.token for e in logprobs] == out.outputs[0].token_ids
    assert scores is not None and len(scores) == 6 and scores[0] is None
    assert [e.chosen.token for e in scores[1:] if e is not None] == list(b"bcdef")


def test_chat(llm: LLM) -> None:
    message = {"role": "user", "content": "hi <|im_end|>"}
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0)
    one = llm.chat([message], params, use_tqdm=False)
    two = llm.chat([[message], [message]], params, use_tqdm=False)
    assert len(one) == 1 and len(two) == 2 and texts(two) == texts(one) * 2
    assert one[0].prompt_token_ids.count(259) == 1, "what users type is text"


@pytest.mark.parametrize("name", ["messages", "self", "add_generation_prompt", "tools"])
def test_chat_takes_names_for_the_template_as_one_mapping(llm: LLM, name: str) -> None:
    message = {"role": "user", "content": "hi"}
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs: got '{name}', allowed: names that"):
        llm.chat([message], chat_template_kwargs={name: []}, use_tqdm=False)
    # Arguments of what lies between here and the template are no names of the rendering.
    assert llm.render_chat([message], chat_template_kwargs={"ask": 1, "prompt": 2}) == llm.render_chat([message])
    with pytest.raises(InvalidRequest, match="chat_template_kwargs: got 'int', allowed: an object"):
        wrong: Any = 5
        llm.chat([message], chat_template_kwargs=wrong, use_tqdm=False)


def test_one_bad_prompt_stops_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match="allowed: up to 4095"):
        llm.generate(["fine", [1] * 5000], SamplingParams(), use_tqdm=False)
    with pytest.raises(InvalidRequest, match="sampling_params"):
        llm.generate(["a", "b"], [SamplingParams()], use_tqdm=False)
    assert llm.stats().running == llm.stats().waiting == 0
    assert llm.generate("still works", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished


def test_progress_bar(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, SamplingParams(max_tokens=2))
    assert "generating" in capfd.readouterr().err


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_num_seqz"):
        LLM("fake", executor="fake", max_num_seqz=3)
    with pytest.raises(ConfigError, match="max-num-seqs"):
        LLM("fake", executor="fake", max_num_seqs=0)
    with pytest.raises(ConfigError, match="one or the other"):
        LLM(fake_args(), seed=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "--dtype: got 'float16', allowed: auto | float32 | bfloat16 (the nearest is bfloat16)"),
        ({"max_num_seqs": "many"}, "--max-num-seqs: got 'many', allowed: an integer"),
        (
            {"gpu_memory_utilization": 0.9},
            "LLM has no gpu_memory_utilization: here it is kv_cache_memory_bytes, memory",
        ),
        ({"tensor_parallel_size": 2}, "LLM has no tensor_parallel_size: not supported yet"),
        ({"max_model_length": 9}, "LLM has no max_model_length: did you mean max_model_len?"),
        ({"xyzzy": 9}, "LLM has no xyzzy: allowed: model, served_model_name"),
    ],
)
def test_options_are_refused_with_advice(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        LLM("fake", **({"executor": "fake"} | options))


def test_a_model_is_a_path_or_a_name(tmp_path: Path) -> None:
    none: Any = None
    with pytest.raises(ConfigError, match="model: got None, allowed: a path"):
        LLM(none)
    assert engine_args(tmp_path / "a.gguf", {}).model == str(tmp_path / "a.gguf")
    assert engine_args("m", {"served_model_name": ["a", "b"]}).served_model_name == ("a", "b")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.generate(None), "prompts: got None, allowed: a prompt, or a list of them"),
        (lambda llm: llm.generate(5), "prompts: got 5, allowed"),
        (lambda llm: llm.generate([None]), "prompt: got None, allowed: token ids"),
        (lambda llm: llm.generate("a", {"temperature": 0}), "sampling_params: got {'temperature': 0}, allowed: a Sam"),
        (lambda llm: llm.generate(["a"], [None]), "sampling_params: got None, allowed: a SamplingParams"),
        (lambda llm: llm.generate("a", "greedy"), "sampling_params: got "),
        (lambda llm: llm.generate("a", priority=None), "priority: got None, allowed: an integer, or one a prompt"),
        (lambda llm: llm.generate("a", priority=5), "priority: got 5, allowed: 0 "),
        (lambda llm: llm.generate("a", priority=[0, 0]), "priority: got 2 for 1 prompts, allowed: one for all"),
        (lambda llm: llm.chat(None), "messages: got None, allowed: a conversation"),
        (lambda llm: llm.chat("hi"), "messages: got 'hi', allowed: a conversation"),
        (lambda llm: next(llm.stream(None)), "prompt: got 'NoneType', allowed: a string or a list of token ids"),
        (lambda llm: next(llm.stream("a", 5)), "sampling_params: got 5, allowed: a SamplingParams"),
    ],
)
def test_wrong_arguments_are_typed(llm: LLM, call: Callable[[LLM], object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        call(llm)
    assert llm.generate("goes on", SamplingParams(max_tokens=1), use_tqdm=False)[0].finished


def test_closed(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(EngineDead):
        llm.generate("a", use_tqdm=False)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failing_step_fails_the_guilty_alone(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """R11, through the whole front half: a token that makes any step raise."""
    from octavo.config.resolve import resolve
    from octavo.engine import inproc
    from octavo.executor.fake import FakeExecutor
    from octavo.sched.scheduler import Scheduler

    poison = list(b"poison")

    def fail(plan: StepPlan) -> str | None:
        prompts = (array("i", row.new.token_ids[: 4 * row.new.num_prompt]) for row in plan.seqs if row.new is not None)
        return "poisoned" if any(list(prompt) == poison for prompt in prompts) else None

    def build(args: EngineArgs, **_: object) -> Engine:
        facts = fake_facts(args)
        executor = FakeExecutor(facts, fail=fail)
        config = resolve(args, facts)
        return Engine(
            core=EngineCore(Scheduler(config.scheduler, facts), executor, depth=depth), facts=facts, config=config
        )

    monkeypatch.setattr(inproc, "build_engine", build)
    monkeypatch.setattr(inproc, "open_front", lambda args: (args, fake_front(args)))
    prompts = [*PROMPTS, poison]
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
    with LLM(fake_args(depth=depth)) as sick:
        outputs = sick.generate(prompts, params, use_tqdm=False)
        assert outputs[4].outputs[0].finish_reason is FinishReason.ERROR
        assert "poisoned" in (outputs[4].outputs[0].error or "")
        assert sick.stats().blocks_used == 0
    with LLM(fake_args()) as healthy:
        assert texts(outputs[:4]) == texts(healthy.generate(PROMPTS, params, use_tqdm=False))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A job in the background starts with SIGINT ignored; here it is a terminal's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_falls_between_steps(llm: LLM) -> None:
    """However it is timed, the engine is whole afterwards and holds nothing."""
    params = SamplingParams(max_tokens=3000, ignore_eos=True, temperature=0)
    short = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
    expected = texts(llm.generate(PROMPTS, short, use_tqdm=False))
    for delay in (0.01, 0.05, 0.1):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, params, use_tqdm=False)
        stats = llm.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert texts(llm.generate(PROMPTS, short, use_tqdm=False)) == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_broken_executor_is_a_dead_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no more memory")

    stream = llm.stream("abc", SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    stepper = llm._client._stepper
    assert stepper is not None
    monkeypatch.setattr(stepper.core.executor, "collect", broken)
    with pytest.raises(EngineDead, match="RuntimeError: no more memory"):
        llm.generate("a", use_tqdm=False)
    with pytest.raises(EngineDead):
        list(stream)


def test_an_answer_that_is_cut_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octavo"), LLM(fake_args(max_model_len=64)) as llm:
        caplog.clear()
        for given, cut in ((57, 0), (None, 0), (58, 1), (9000, 2), (9000, 3)):
            params = SamplingParams(max_tokens=given, ignore_eos=True)
            (output,) = llm.generate([1] * 7, params, use_tqdm=False)
            assert len(output.outputs[0].token_ids) == 57
            assert output.outputs[0].finish_reason is FinishReason.LENGTH
            assert llm.stats().clamped == cut
    assert [m for m in caplog.messages if "max_tokens" in m] == [
        "max_tokens: got 58, cut to 57 after a prompt of 7 tokens: the model length is 64 tokens"
    ]


@pytest.mark.parametrize("messages", [5, [5], [[5]], "hi", ["hi"], {"role": "user"}])
def test_what_is_no_conversation_is_told(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"messages.*: got .*, allowed: "):
        llm.chat(messages)
