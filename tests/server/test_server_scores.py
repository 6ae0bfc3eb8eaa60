"""Scores of completions: offsets are places in the text that the client was sent; what is hidden does not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.config.server import ServerConfig
from octavo.server.app import build_app
from tests.fakes import BOS, EOS, FakeAsyncLLM
from tests.server.harness import call

SMILE = "\N{SLIGHTLY SMILING FACE}"


def answer(prompt: Sequence[int]) -> list[int]:
    """A special token in the middle, which is not shown, and a character of four tokens."""
    return [*b"a", BOS, *SMILE.encode(), *b"bc", EOS]


def scored(prompt: str | list[int], *, stream: bool, **more: Any) -> tuple[str, list[str], list[int], dict[str, Any]]:
    """Text, tokens, offsets and usage."""
    app = build_app(FakeAsyncLLM(answer=answer), ServerConfig())
    asked = {"prompt": prompt, "logprobs": 1, "stream": stream, **more}
    if not stream:
        reply = call(app, "POST", "/v1/completions", asked).json()
        choices, usage = reply["choices"], reply["usage"]
    else:
        asked["stream_options"] = {"include_usage": True}
        *events, last, done = call(app, "POST", "/v1/completions", asked).events
        assert done == "[DONE]"
        choices, usage = [event["choices"][0] for event in events], last["usage"]
    text = "".join(choice["text"] for choice in choices)
    scores = [choice["logprobs"] for choice in choices]
    return text, [t for s in scores for t in s["tokens"]], [at for s in scores for at in s["text_offset"]], usage


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("echo", [False, True], ids=["answer", "echo"])
@pytest.mark.parametrize("prompt", [f"x{SMILE}y", [BOS, *f"x{SMILE}y".encode()]], ids=["text", "ids"])
def test_offsets_are_places_in_the_text(prompt: str | list[int], echo: bool, stream: bool) -> None:
    text, tokens, offsets, _ = scored(prompt, stream=stream, echo=echo)
    shown = f"x{SMILE}y" if isinstance(prompt, str) else f"<bos>x{SMILE}y"
    assert text == (shown if echo else "") + f"a{SMILE}bc"
    places = [text.rindex(token) for token in ("a", "b", "c")]
    assert [offsets[tokens.index(token)] for token in ("a", "b", "c")] == places
    parts = [at for token, at in zip(tokens, offsets, strict=True) if token.startswith("bytes:")]
    assert parts == ([text.index(SMILE)] * 4 if echo else []) + [text.rindex(SMILE)] * 4
    assert offsets == sorted(offsets) and len(tokens) == (9 if not echo else 16)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_nothing_is_generated_where_nothing_was_asked_for(stream: bool) -> None:
    text, tokens, offsets, usage = scored("xy", stream=stream, echo=True, max_tokens=0)
    assert (text, tokens[1:], offsets) == ("xy", ["x", "y"], [0, 0, 1])
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 0, 3)
