"""Print an answer as it grows: python examples/stream.py [MODEL]"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams


def main(model: str = "smollm2") -> None:
    with LLM(model) as llm:
        for output in llm.stream("Once upon a time", SamplingParams(temperature=0, max_tokens=64)):
            print(output.outputs[0].delta, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
