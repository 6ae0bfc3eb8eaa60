"""Hold a conversation through the model's chat template: python examples/chat.py [MODEL]"""

from __future__ import annotations

import sys

from octavo import LLM, SamplingParams

QUESTIONS = ["Name a planet.", "How far is it from the sun?"]


def main(model: str = "smollm2") -> None:
    with LLM(model) as llm:
        messages = [{"role": "system", "content": "You answer in one sentence."}]
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
            answer = output.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            # From the second turn on, the conversation so far is found in the prefix cache.
            print(f"> {question}\n{answer}   ({output.num_cached_tokens} prompt tokens were cached)")


if __name__ == "__main__":
    main(*sys.argv[1:])
