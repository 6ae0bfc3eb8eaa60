"""Many streams at once on one event loop, the engine in its own process: python examples/async_client.py [MODEL]"""

from __future__ import annotations

import asyncio
import sys

from octavo import AsyncLLM, EngineArgs, SamplingParams

PROMPTS = ["The sea is", "A good book", "In the morning"]


async def answer(llm: AsyncLLM, prompt: str) -> str:
    text = ""
    async for output in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=32)):
        text += output.outputs[0].delta  # leaving this loop early would abort the request
    return text


async def main(model: str = "smollm2") -> None:
    async with await AsyncLLM.start(EngineArgs(model=model)) as llm:
        for prompt, text in zip(PROMPTS, await asyncio.gather(*(answer(llm, p) for p in PROMPTS)), strict=True):
            print(f"{prompt!r} -> {text!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
