"""What a model served is worth: perplexity of a text of ours, through the server whose speed stands beside it."""

from __future__ import annotations

from pathlib import Path

from bench.load import Figures
from octavo.bench.client import Client
from octavo.cli.evaluate import Score, prompts_of
from octavo.cli.quantize import TEXT
from octavo.config.args import EngineArgs
from octavo.engine.build import open_front
from octavo.llm.front import ModelFront

WINDOW = 512


def windows(model: Path) -> list[list[int]]:
    """The text with which `octavo quantize` judges, as `octavo eval perplexity` cuts it, in ids of `model`."""
    args, front = open_front(EngineArgs(model=str(model)))
    return prompts_of(ModelFront.build(front, args).tokenizer, TEXT.read_text(encoding="utf-8"), window=WINDOW)


async def quality(client: Client, rep: int, *, prompts: list[list[int]]) -> Figures:
    """`quality`: perplexity over all windows but their first tokens; empty where a server does not score prompts."""
    found: list[float] = []
    for ids in prompts:
        scores = await client.score(ids)
        if scores is None:
            return {"quality": {}}
        found += scores
    score = Score(-sum(found), len(found))
    return {"quality": {"perplexity": score.perplexity, "tokens": score.tokens}}
