"""A stand-in for `octavo.llm.AsyncLLM` without an engine: server tests run in milliseconds."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.config.args import EngineArgs
from octavo.config.policy import DEFAULT_POLICY, PolicyName
from octavo.config.resolve import EngineConfig, resolve
from octavo.engine.messages import EngineStats
from octavo.errors import EngineDead, InvalidRequest, PromptTooLong, QueueFull
from octavo.facts import Facts, KVGroup
from octavo.obs.metrics import Metrics
from octavo.text.chat import Ask
from octavo.types import Completion, FinishReason, Logprob, RequestOutput, SamplingParams, TokenLogprobs

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIALS = {BOS: "<bos>", EOS: "<eos>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
VOCAB = 260
TEXT = "Grüße, 世界! 👩‍👩‍👧 The answer is forty-two. "


class FakeTokenizer:
    """One id a byte, four specials."""

    vocab_size = VOCAB
    bos_id = BOS
    eos_ids = (EOS,)
    special_ids = frozenset(SPECIALS)
    strip_start = False
    add_bos = True

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        bos = [BOS] if (self.add_bos if add_bos is None else add_bos) else []
        return bos + list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids if i < 256 or not skip_special_tokens).decode(
            "utf-8", "replace"
        )

    def token_bytes(self, token_id: int, /) -> bytes:
        return bytes([token_id]) if token_id < 256 else SPECIALS[token_id].encode()

    def token_text(self, token_id: int, /) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")


class _Seq:
    """One answer of a request: ids in, text out."""

    def __init__(self, ids: Sequence[int], params: SamplingParams, index: int) -> None:
        self.params, self.index = params, index
        self.pending = list(ids)
        self.ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.finish: FinishReason | None = None
        self.reason: int | str | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def step(self) -> Completion:
        if self.finish is not None:
            return self._completion("", [])
        params = self.params
        token = self.pending.pop(0)
        self.ids.append(token)
        if params.logprobs is not None:
            self.logprobs.append(scores(token, params.logprobs))
        limit = params.max_tokens
        if token == EOS and not params.ignore_eos:
            self.finish = FinishReason.STOP
        elif token in params.stop_token_ids:
            self.finish, self.reason = FinishReason.STOP, token
        elif limit is not None and len(self.ids) >= limit:
            self.finish = FinishReason.LENGTH
        text = self._decoder.decode(bytes([token]) if token < 256 else b"", final=self.finish is not None)
        delta = self._stop(text)
        self.text += delta
        return self._completion(delta, [token])

    def _stop(self, text: str) -> str:
        held = self._held + text
        hits = [(held.find(s), s) for s in self.params.stop if s in held]
        if hits:
            at, stop = min(hits)
            self.finish, self.reason = FinishReason.STOP, stop
            return held[: at + (len(stop) if self.params.include_stop_str_in_output else 0)]
        keep = 0
        if self.finish is None:
            tails = (k for s in self.params.stop for k in range(1, len(s)) if held.endswith(s[:k]))
            keep = max(tails, default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def _completion(self, delta: str, new: list[int]) -> Completion:
        return Completion(
            self.index,
            self.text,
            list(self.ids),
            self.finish,
            self.reason,
            list(self.logprobs) if self.params.logprobs is not None else None,
            delta,
            new,
        )


def scores(token: int, top: int) -> TokenLogprobs:
    """The token with `top` alternatives; the last is impossible, as after a mask."""
    best = [Logprob((token + k) % VOCAB, -0.5 - k if k + 1 < top else float("-inf"), k + 1) for k in range(top)]
    return TokenLogprobs(Logprob(token, -0.5, 1), best)


def answer_to(prompt: Sequence[int]) -> list[int]:
    """The default answer: depends on the prompt, has every length of UTF-8, ends with EOS."""
    mark = hashlib.sha256(repr(list(prompt)).encode()).hexdigest()[:6]
    return [*f"{mark} {TEXT}".encode(), EOS]


class FakeAsyncLLM:
    """The surface of AsyncLLM. Knobs: `answer` (prompt ids -> ids), `delay` a token, `slots`, `fail_at` a token."""

    def __init__(
        self,
        *,
        answer: Callable[[Sequence[int]], Sequence[int]] = answer_to,
        delay: float = 0.0,
        first_delay: float = 0.0,
        model_names: Sequence[str] = ("fake",),
        template: bool = True,
        max_model_len: int = 512,
        max_queue: int = 1024,
        default_sampling: Mapping[str, Any] | None = None,
        fail_at: int | None = None,
        policy: PolicyName = DEFAULT_POLICY,
    ) -> None:
        self.answer, self.delay, self.first_delay, self.fail_at = answer, delay, first_delay, fail_at
        self.facts = Facts(
            model_name=model_names[0],
            architecture="fake",
            vocab_size=VOCAB,
            model_len=max_model_len,
            groups=(KVGroup(name="full", kind="full", layers=1),),
            block_size=16,
            block_bytes=16,
            num_blocks=129,
            eos_ids=(EOS,),
        )
        args = EngineArgs(
            model="fake",
            served_model_name=tuple(model_names),
            executor="fake",
            max_queue=max_queue,
            scheduling_policy=policy,
        )
        self.config: EngineConfig = resolve(args, self.facts)
        self.tokenizer = FakeTokenizer()
        self.chat_template: object | None = "fake" if template else None
        self.default_sampling = dict(default_sampling or {})
        self.model_names = list(model_names)
        self.metrics = Metrics(model=model_names[0])
        self.dead = False
        self.open: set[str] = set()
        self.seen: list[tuple[str | list[int], SamplingParams, int, str | None]] = []
        self.aborted: list[str] = []
        self.closed = False
        self._ids = itertools.count()
        self.rendered: list[tuple[Any, Ask]] = []

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        stream: bool = True,
    ) -> AsyncIterator[RequestOutput]:
        self.check_health()
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self.seen.append((prompt if isinstance(prompt, str) else ids, params, priority, cache_salt))
        if not ids:
            raise InvalidRequest("prompt: got no tokens, allowed: at least one", param="prompt")
        limit = self.config.max_model_len
        if len(ids) >= limit:
            raise PromptTooLong(f"prompt: got {len(ids)} tokens, allowed: up to {limit - 1}", param="prompt")
        if len(self.open) >= self.config.max_queue:
            raise QueueFull(f"{len(self.open)} requests wait already", retry_after=2)
        name = request_id or f"req-{next(self._ids)}"
        assert name not in self.open
        self.open.add(name)
        self.metrics.running.set(len(self.open))
        done = False
        try:
            await asyncio.sleep(self.first_delay)
            self.check_health()
            async for output in self._run(name, prompt, ids, params):
                done = output.finished
                if stream or done:
                    yield output
        finally:
            self.open.discard(name)
            self.metrics.running.set(len(self.open))
            if not done:
                self.aborted.append(name)

    async def _run(
        self, name: str, prompt: str | Sequence[int], ids: list[int], params: SamplingParams
    ) -> AsyncIterator[RequestOutput]:
        room = self.config.max_model_len - len(ids)
        params = msgspec.structs.replace(params, max_tokens=min(room, params.max_tokens or room))
        seqs = [_Seq(self._stream(ids, params, index), params, index) for index in range(params.n)]
        prompt_logprobs: list[TokenLogprobs | None] | None = None
        if (top := params.prompt_logprobs) is not None:
            prompt_logprobs = [None, *(scores(token, top) for token in ids[1:])]
        self.metrics.prompt_tokens.inc(len(ids))
        for step in itertools.count():
            if step:
                await asyncio.sleep(self.delay)
                self.check_health()
            outputs = [seq.step() for seq in seqs]
            if self.fail_at == step:
                seqs[-1].finish = FinishReason.ERROR
                outputs[-1] = Completion(len(seqs) - 1, "", [], FinishReason.ERROR, error="/secret/path exploded")
            self.metrics.generation_tokens.inc(sum(len(c.delta_ids) for c in outputs))
            finished = all(c.finish_reason is not None for c in outputs)
            text = prompt if isinstance(prompt, str) else None
            yield RequestOutput(name, text, ids, outputs, finished, min(16, len(ids)), prompt_logprobs)
            if finished:
                return

    def _stream(self, ids: list[int], params: SamplingParams, index: int) -> list[int]:
        count = params.max_tokens or 0
        answer = [*self.answer(ids)]
        if index:
            answer = [*f"[{index}] ".encode(), *answer]
        if params.ignore_eos:
            answer = [t for t in answer if t != EOS] * (count // max(1, len(answer) - 1) + 2)
        return [*answer, *[EOS] * (count + 1)]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **asked: Any) -> list[int]:
        ask = Ask(**asked)
        ask.check()
        self.rendered.append((messages, ask))
        ids = [BOS]
        for message in messages:
            content = message["content"] or ""
            text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
            ids += [IM_START, *f"{message['role']}\n{text}".encode("utf-8", "replace"), IM_END]
        return [*ids, IM_START, *b"assistant\n"] if ask.add_generation_prompt else ids

    async def render_chat_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        return self.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def check_health(self) -> None:
        if self.dead:
            raise EngineDead("engine process 123 ended: /secret/path")

    def stats(self) -> EngineStats:
        fields = dict.fromkeys(EngineStats.__struct_fields__, 0)
        fields |= {"running": len(self.open), "blocks_total": 128, "blocks_used": len(self.open), "groups": ()}
        return EngineStats(**fields)

    async def close(self) -> None:
        self.closed = True
