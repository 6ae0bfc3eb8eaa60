"""The examples run: on the fake executor, which answers nonsense, and as their own programs on the demo model.

On the demo model each must print what `LLM` in this process answers to the same requests.
"""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo import LLM, EngineArgs, SamplingParams
from octavo.bench.process import free_port, running
from tests.child import child_env
from tests.models_at_hand import smollm2

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OFFLINE = ["offline_batch", "stream", "chat", "async_client"]


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*OFFLINE, "openai_client"}


@pytest.mark.parametrize("name", OFFLINE)
def test_example(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fake_llm(model: str) -> LLM:
        return LLM(model, executor="fake")

    def fake_args(**fields: Any) -> EngineArgs:
        return EngineArgs(executor="fake", **fields)

    monkeypatch.setattr(octavo, "LLM", fake_llm)
    monkeypatch.setattr(octavo, "EngineArgs", fake_args)
    done = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]("fake")
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    assert len(capsys.readouterr().out) > 20


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    with LLM(str(smollm2())) as made:
        yield made


def printed(name: str, *words: str) -> str:
    """What the example prints as a program of its own."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=child_env(), timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def texts(llm: LLM, prompts: str | list[str], **params: Any) -> list[str]:
    outputs = llm.generate(prompts, SamplingParams(**params), use_tqdm=False)
    answers = [output.outputs[0].text for output in outputs]
    assert all(len(answer.split()) > 1 for answer in answers), answers
    return answers


def constants(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.model
def test_the_batch_on_the_demo_model(llm: LLM) -> None:
    prompts: list[str] = constants("offline_batch")["PROMPTS"]
    answers = texts(llm, prompts, temperature=0.8, top_p=0.95, max_tokens=32, seed=1)
    expected = [f"{p!r} -> {a!r}" for p, a in zip(prompts, answers, strict=True)]
    assert printed("offline_batch", str(smollm2())).splitlines() == expected


@pytest.mark.model
def test_the_stream_on_the_demo_model(llm: LLM) -> None:
    (answer,) = texts(llm, "Once upon a time", temperature=0, max_tokens=64)
    assert printed("stream", str(smollm2())) == answer + "\n"


@pytest.mark.model
def test_the_async_client_on_the_demo_model(llm: LLM) -> None:
    prompts: list[str] = constants("async_client")["PROMPTS"]
    answers = texts(llm, prompts, temperature=0, max_tokens=32)
    expected = [f"{p!r} -> {a!r}" for p, a in zip(prompts, answers, strict=True)]
    assert printed("async_client", str(smollm2())).splitlines() == expected


@pytest.mark.model
def test_the_conversation_on_the_demo_model(llm: LLM) -> None:
    """The second answer follows from the first, and finds the conversation in the prefix cache."""
    questions: list[str] = constants("chat")["QUESTIONS"]
    messages = [{"role": "system", "content": "You answer in one sentence."}]
    expected = ""
    llm.reset_prefix_cache()
    cached = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
        answer = output.outputs[0].text
        assert len(answer.split()) > 1
        messages.append({"role": "assistant", "content": answer})
        cached.append(output.num_cached_tokens)
        expected += f"> {question}\n{answer}   ({cached[-1]} prompt tokens were cached)\n"
    assert cached[0] == 0 < cached[1]
    assert printed("chat", str(smollm2())) == expected


@pytest.mark.model
def test_the_openai_client_on_the_demo_model() -> None:
    pytest.importorskip("openai", reason="the official client is not installed")
    pytest.importorskip("octavo._native", reason="the native module is not built")
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", str(smollm2()), "--port", str(port)]
    with running([*command, "--served-model-name", "demo"], port=port, model="demo", env=child_env()) as server:
        text, last = printed("openai_client", "--url", f"{server.url}/v1").rstrip("\n").rsplit("\n\n", 1)
    name, _, rest = last.partition(": ")
    assert name == "demo"
    assert len(text.split()) > 1
    assert 1 < int(rest.split()[0]) <= 200
