"""Answer many prompts at once, in this process: python examples/offline_batch.py [MODEL]"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams

PROMPTS = ["Hello, my name is", "The capital of France is", "The future of computing is"]


def main(model: str = "smollm2") -> None:
    with LLM(model) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, seed=1)):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
