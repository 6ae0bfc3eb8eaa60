"""What a model served is worth: perplexity of a text of ours, through the server whose speed stands beside it."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path

from bench.load import Figures
from octavo.bench.client import Client
from octavo.config.args import EngineArgs
from octavo.engine.build import open_front
from octavo.llm.front import ModelFront

WINDOW = 512
"""Tokens of a prompt; each starts afresh."""


def windows(model: Path) -> list[list[int]]:
    """The text of `octavo quantize`'s perplexity as ids of `model`: the same for every engine."""
    args, front = open_front(EngineArgs(model=str(model)))
    tokenizer = ModelFront.build(front, args).tokenizer
    ids = tokenizer.encode(files("octavo.cli").joinpath("perplexity.txt").read_text(encoding="utf-8"))
    return [ids[i : i + WINDOW] for i in range(0, len(ids), WINDOW)]


async def quality(client: Client, rep: int, *, prompts: list[list[int]]) -> Figures:
    """`quality`: perplexity over all windows but their first tokens; empty where a server does not score prompts."""
    total, count = 0.0, 0
    for ids in prompts:
        scores = await client.score(ids)
        if scores is None:
            return {"quality": {}}
        total, count = total + sum(scores), count + len(scores)
    return {"quality": {"perplexity": math.exp(-total / count), "tokens": count}}
