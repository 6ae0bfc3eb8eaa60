"""`octavo eval`: measure a model on text."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from octavo.cli.errors import FAILED, OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.text.tokenizer import Tokenizer

LEAST = 3
"""A window shorter than this (BOS counted) is left out: it scores next to nothing."""


class EvalFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    files: tuple[str, ...] = ()
    """Text files (UTF-8); the last line pools them all."""
    window: int = 1024
    """Tokens scored together; each window starts afresh, with BOS where the model wants one."""
    json: bool = False
    """As JSON, one object."""


class Score(NamedTuple):
    """Sum of negative log-likelihoods (nats) over a number of tokens."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens) if self.tokens else math.nan


SPEC = Spec(
    "eval perplexity",
    "Perplexity of text files, in windows of --window tokens that start afresh. Several files are also pooled.",
    (EvalFlags, EngineArgs),
    (Positional("model"), Positional("files", many=True, label="FILE")),
    without=SERVER_ONLY,
)


def run(argv: list[str]) -> int:
    if argv[:1] in ([], ["-h"], ["--help"]):
        print("usage: octavo eval perplexity MODEL FILE...\n\nMeasures: perplexity")
        return OK if argv else 2
    if argv[0] != "perplexity":
        raise UsageError(f"eval: got {argv[0]!r}, allowed: perplexity")
    parsed = parse(SPEC, argv[1:])
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[EvalFlags]
    if flags.window < 2:
        raise UsageError(f"--window: got {flags.window}, allowed: 2 or more")
    texts = {name: Path(name).read_bytes().decode("utf-8") for name in flags.files}
    from octavo.llm import LLM

    fields = {k: v for k, v in msgspec.structs.asdict(args).items() if k != "model"}
    with LLM(args.model, **fields) as llm:
        scores = {name: perplexity(llm, text, window=flags.window) for name, text in texts.items()}
    pooled = Score(sum(s.nll for s in scores.values()), sum(s.tokens for s in scores.values()))
    if flags.json:
        files = {name: {"perplexity": s.perplexity, "tokens": s.tokens} for name, s in scores.items()}
        body = {"files": files, "pooled": {"perplexity": pooled.perplexity, "tokens": pooled.tokens}}
        print(msgspec.json.encode(body).decode())
    else:
        rows = [*scores.items(), *([("pooled", pooled)] if len(scores) > 1 else [])]
        width = max(len(name) for name, _ in rows)
        for name, s in rows:
            print(f"{name:<{width}}  perplexity {s.perplexity:.4f}  tokens {s.tokens}")
    return OK if math.isfinite(pooled.nll) and pooled.tokens else FAILED


def perplexity(llm: LLM, text: str, *, window: int = 1024) -> Score:
    """Score `text` under the model: windows of `window` tokens, each scored on its own (first token unscored)."""
    from octavo.types import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, ignore_eos=True)
    prompts = prompts_of(llm.tokenizer, text, window=window)
    nll, tokens = 0.0, 0
    for output in llm.generate(prompts, params, use_tqdm=sys.stderr.isatty()):
        if output.outputs[0].error or output.prompt_logprobs is None:
            raise OctavoError(f"a window could not be scored: {output.outputs[0].error or 'no prompt_logprobs'}")
        scored = [entry for entry in output.prompt_logprobs if entry is not None]
        nll -= sum(entry.chosen.logprob for entry in scored)
        tokens += len(scored)
    return Score(nll, tokens)


def prompts_of(tokenizer: Tokenizer, text: str, *, window: int) -> list[list[int]]:
    """The windows of `text` as ids, each with BOS before it where the model wants one."""
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    return list(windows(tokenizer.encode(text, add_bos=False), window, bos))


def windows(ids: Sequence[int], window: int, bos: list[int]) -> Iterator[list[int]]:
    """Cut ids into windows, `bos` before each; a last one too short to score is left out."""
    for start in range(0, len(ids), window):
        piece = bos + list(ids[start : start + window])
        if len(piece) >= LEAST:
            yield piece
