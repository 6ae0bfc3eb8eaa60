"""Log-probabilities in the three shapes clients know. JSON has no -Infinity: it becomes FLOOR (R24)."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.server.openai.protocol import (
    ChatLogprob,
    ChatLogprobs,
    PromptLogprob,
    TextLogprobs,
    TopLogprob,
)
from octavo.server.ports import TokenizerPort
from octavo.text.detokenize import Detokenizer
from octavo.types import Logprob, RequestOutput, TokenLogprobs

FLOOR = -9999.0
HEAVY_SCORES = 256
"""Scores of so many prompt tokens are written on a thread."""


def finite(logprob: float) -> float:
    """NaN and -inf become FLOOR."""
    return logprob if logprob > FLOOR else FLOOR


def token_str(tokenizer: TokenizerPort, token_id: int) -> tuple[str, bytes]:
    """A token as text and as bytes. A token that is only part of a character is written `bytes:\\xe2\\x80`, so that
    two such tokens stay two keys."""
    raw = tokenizer.token_bytes(token_id)
    if not raw:  # a special token stands for no text
        text = tokenizer.token_text(token_id)
        return text, text.encode()
    try:
        return raw.decode(), raw
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


class TextScores:
    """Completions style, of one choice. Offsets count characters of the text that the client is sent: a token of which
    nothing is shown counts none, and the parts of a character have the character's place."""

    def __init__(self, tokenizer: TokenizerPort, output: RequestOutput, *, top: int, skip_special_tokens: bool) -> None:
        """`output`: any of the request's. `skip_special_tokens`: as the answer's text has been made."""
        self._tokenizer = tokenizer
        self._top = top
        self._offset = 0
        skip = skip_special_tokens
        self._text = Detokenizer.after(output.prompt_token_ids, tokenizer, skip_special_tokens=skip)

    def prompt(self, output: RequestOutput, text: str) -> TextLogprobs:
        """Of an echoed prompt, which is sent as `text`: a prompt that was given as text has no special tokens in it."""
        spoken = Detokenizer(self._tokenizer, skip_special_tokens=output.prompt is not None)
        scores = self._render(output.prompt_logprobs or (), output.prompt_token_ids, spoken)
        self._offset = len(text)
        return scores

    def answer(self, entries: Sequence[TokenLogprobs], ids: Sequence[int]) -> TextLogprobs:
        """Of the answer's next tokens."""
        return self._render(entries, ids, self._text)

    def _render(self, entries: Sequence[TokenLogprobs | None], ids: Sequence[int], text: Detokenizer) -> TextLogprobs:
        """`entries` beside the token `ids`; None where there is no score (the first prompt token)."""
        out = TextLogprobs([], [], [], [])
        for token_id, entry in zip(ids, entries, strict=False):
            out.tokens.append(token_str(self._tokenizer, token_id)[0])
            out.text_offset.append(self._offset)
            self._offset += len(text.add((token_id,)))
            if entry is None:
                out.token_logprobs.append(None)
                out.top_logprobs.append(None)
                continue
            out.token_logprobs.append(finite(entry.chosen.logprob))
            best = entry.top[: self._top]
            out.top_logprobs.append({token_str(self._tokenizer, t.token)[0]: finite(t.logprob) for t in best})
        return out


def joined(first: TextLogprobs, then: TextLogprobs) -> TextLogprobs:
    """Both, one after the other."""
    return TextLogprobs(
        text_offset=first.text_offset + then.text_offset,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        tokens=first.tokens + then.tokens,
        top_logprobs=first.top_logprobs + then.top_logprobs,
    )


def chat_scores(tokenizer: TokenizerPort, entries: Sequence[TokenLogprobs], *, top: int) -> ChatLogprobs:
    """Chat style."""
    content = []
    for entry in entries:
        text, raw = token_str(tokenizer, entry.chosen.token)
        best = [_top(tokenizer, t) for t in entry.top[:top]]
        content.append(ChatLogprob(text, finite(entry.chosen.logprob), list(raw), best))
    return ChatLogprobs(content)


def _top(tokenizer: TokenizerPort, entry: Logprob) -> TopLogprob:
    text, raw = token_str(tokenizer, entry.token)
    return TopLogprob(text, finite(entry.logprob), list(raw))


def prompt_scores(
    tokenizer: TokenizerPort, entries: Sequence[TokenLogprobs | None] | None
) -> list[dict[int, PromptLogprob] | None] | None:
    """vLLM's `prompt_logprobs`: for each prompt token its own score and the alternatives, by token id."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            t.token: PromptLogprob(finite(t.logprob), t.rank, token_str(tokenizer, t.token)[0])
            for t in (entry.chosen, *entry.top)
        }
        for entry in entries
    ]
