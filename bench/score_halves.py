"""`python bench/score_halves.py MODEL TEXT`: perplexity by the rules of `bench.quality_beside`, as one JSON object.

It uses Octavo's Python API and nothing of this folder, so that any interpreter with Octavo installed can run it.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from octavo import LLM, SamplingParams

WINDOW = 1024


def main(model: str, text: Path) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, ignore_eos=True)
    with LLM(model, max_model_len=WINDOW + 1) as llm:
        tokenizer = llm.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        ids = bos + tokenizer.encode(text.read_text(encoding="utf-8"), add_bos=False)
        whole = [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]
        outputs = llm.generate([bos + window[len(bos) :] for window in whole], params)
    scores = [
        entry.chosen.logprob
        for output in outputs
        for entry in (output.prompt_logprobs or [])[WINDOW // 2 + 1 :]
        if entry is not None
    ]
    assert len(scores) == len(whole) * (WINDOW // 2 - 1), (len(scores), len(whole))
    print(json.dumps({"perplexity": math.exp(-sum(scores) / len(scores)), "windows": len(whole)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
