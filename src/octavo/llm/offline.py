"""`LLM`: the engine in this process, one step at a time in the caller's thread."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import msgspec

from octavo.config.args import EngineArgs
from octavo.config.rivals import FLAGS, near
from octavo.engine.inproc import InprocClient
from octavo.engine.messages import EngineStats
from octavo.errors import ConfigError, EngineDead, InvalidRequest, shown
from octavo.llm.front import ModelFront
from octavo.llm.intake import Intake, Prepared, Prompt, check_params
from octavo.llm.interrupts import between_steps
from octavo.llm.outputs import OutputProcessor, RequestState, publish
from octavo.llm.progress import GenerateBar, LoadingBar
from octavo.obs.metrics import Metrics
from octavo.text.chat import Ask, Message
from octavo.text.tokenizer import Tokenizer
from octavo.types import RequestOutput, SamplingParams


def engine_args(model: str | EngineArgs, options: Mapping[str, Any]) -> EngineArgs:
    """Keyword arguments as an EngineArgs. Raises ConfigError that names a wrong one, and what others call so."""
    if isinstance(model, EngineArgs):
        if options:
            raise ConfigError(f"got EngineArgs and {', '.join(options)}, allowed: one or the other")
        return model
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(f"model: got {shown(model)}, allowed: a path, a name of a model or EngineArgs")
    for name in options:
        if name not in EngineArgs.__struct_fields__:
            raise _unknown_option(name)
    return EngineArgs(model=os.fspath(model), **options)


def _unknown_option(name: str) -> ConfigError:
    """The error for a keyword that LLM does not have, with the best advice there is."""
    flag = f"--{name.replace('_', '-')}"
    if flag in FLAGS:
        # The table speaks of flags; ours have the fields' names.
        advice = re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), FLAGS[flag])
    elif close := near(name, list(EngineArgs.__struct_fields__)):
        advice = f"did you mean {close}?"
    else:
        advice = f"allowed: {', '.join(EngineArgs.__struct_fields__)}"
    return ConfigError(f"LLM has no {name}: {advice}")


class LLM:
    """A model, ready to generate.

    `LLM("smollm2")`, with any field of `EngineArgs` as a keyword. Threads may share it. Raises ConfigError, DoesNotFit,
    ModelError, FetchError. Use as a context manager, or `close()`, to give memory back early.
    """

    def __init__(self, model: str | EngineArgs, **options: Any) -> None:
        args = engine_args(model, options)
        fronts: list[Future[ModelFront]] = []
        with ThreadPoolExecutor(1) as pool, LoadingBar() as bar:
            # The tokenizer is built while weights load.
            self._client = InprocClient.start(
                args,
                on_progress=bar.update,
                on_front=lambda front: fronts.append(pool.submit(ModelFront.build, front, args)),
            )
        try:
            self._front = fronts[0].result()
            self.facts, self.config = self._client.facts, self._client.config
            self.metrics = Metrics(model=self.config.model_names[0])
            self._intake = Intake(tokenizer=self._front.tokenizer, facts=self.facts, config=self.config, seed=args.seed)
            self._outputs = OutputProcessor(tokenizer=self._front.tokenizer, metrics=self.metrics)
        except BaseException:
            self._client.close()
            raise
        self._lock = threading.RLock()

    # -- asking -------------------------------------------------------------------------------------------------------
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        parse_special: bool = False,
    ) -> list[RequestOutput]:
        """Answer every prompt; outputs come in the order of the prompts.

        A prompt is text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; one or a list of them.
        `sampling_params` is one for all, or one a prompt; None: the model's own defaults. `parse_special` turns special
        tokens written in a text into their ids. Raises InvalidRequest before anything runs if any prompt is at fault; a
        request that fails in the engine has finish_reason "error" and the others stand.
        """
        many: list[Any] = [prompts] if _is_one(prompts) else _several("prompts", prompts, "a prompt, or a list of them")
        return self._generate(many, sampling_params, priority=priority, parse_special=parse_special, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template.

        `continue_final_message` (with add_generation_prompt=False) goes on with the last message instead of answering
        it. `tools`: JSON schemas of functions, for the template; calls come back as the text the model writes.
        `chat_template_kwargs`: more names for the template; one that rendering itself is made of is an InvalidRequest.
        """
        given = _several("messages", messages, "a conversation (a list of messages), or a list of them")
        many: Sequence[Any] = [given] if given and isinstance(given[0], Mapping) else given
        ask = Ask(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        prompts = [self._front.render_chat(m, ask) for m in many]
        return self._generate(prompts, sampling_params, priority=0, parse_special=False, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
    ) -> Generator[RequestOutput, None, None]:
        """The answer as it grows: cumulative outputs with deltas, the last one finished.

        Raises InvalidRequest here, at the call. The request runs from when its first item is asked for: one that nobody
        asks for takes no place. Dropping or closing the iterator aborts.
        """
        params = self._params(sampling_params, 1)[0]
        return self._stream(self._intake.prepare(prompt, params, parse_special=parse_special))

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, through the chat template. `chat_template_kwargs`: more names for the template.
        Raises InvalidRequest, also for a name there that rendering itself is made of."""
        ask = Ask(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self._front.render_chat(messages, ask)

    # -- knowing ------------------------------------------------------------------------------------------------------
    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self._front.tokenizer

    @property
    def default_sampling(self) -> dict[str, Any]:
        """SamplingParams fields from the model's generation_config."""
        return dict(self._front.default_sampling)

    def stats(self) -> EngineStats:
        """The engine after its last step."""
        return self._client.stats

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks that nobody holds."""
        with self._lock:
            self._client.reset_prefix_cache()

    def close(self) -> None:
        """Give threads and memory back. Safe to call twice."""
        with self._lock:
            self._client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- below --------------------------------------------------------------------------------------------------------
    def _params(self, given: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if given is None:
            given = SamplingParams(**self._front.default_sampling)
        if isinstance(given, SamplingParams) or not isinstance(given, Sequence):
            return [check_params(given, "sampling_params")] * count
        if len(given) != count:
            raise InvalidRequest(
                f"sampling_params: got {len(given)} for {count} prompts, allowed: one for all or one a prompt",
                param="sampling_params",
            )
        return [check_params(each, "sampling_params") for each in given]

    def _admit(self, prompt: Prompt, params: SamplingParams, *, priority: int, parse_special: bool) -> RequestState:
        return self._open(self._intake.prepare(prompt, params, priority=priority, parse_special=parse_special))

    def _open(self, prepared: Prepared) -> RequestState:
        with self._lock:
            state = self._outputs.open(prepared)
            self._client.add(prepared.requests)
        return state

    def _step(self) -> None:
        """One step of the engine, for every open request of every thread."""
        with self._lock, between_steps():
            try:
                message = self._client.poll()
            except EngineDead as error:
                self._outputs.fail_all(error)
                raise
            if message is None:
                return
            publish(self.metrics, message)
            aborts = self._outputs.handle(message)
            if aborts:
                self._client.abort(aborts)

    def _abort(self, states: Sequence[RequestState]) -> None:
        with self._lock:
            seq_ids = [s for state in states for s in self._outputs.abort(state)]
            if seq_ids:
                self._client.abort(seq_ids)

    def _generate(
        self,
        prompts: Sequence[Prompt],
        given: SamplingParams | Sequence[SamplingParams] | None,
        *,
        priority: int | Sequence[int],
        parse_special: bool,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = self._params(given, len(prompts))
        if isinstance(priority, int):
            priority = [priority] * len(prompts)
        priorities = _several("priority", priority, "an integer, or one a prompt")
        if len(priorities) != len(prompts):
            raise InvalidRequest(
                f"priority: got {len(priorities)} for {len(prompts)} prompts, allowed: one for all or one a prompt",
                param="priority",
            )
        states: list[RequestState] = []
        try:
            for prompt, each, rank in zip(prompts, params, priorities, strict=True):
                states.append(self._admit(prompt, each, priority=rank, parse_special=parse_special))
            with GenerateBar(states, enabled=use_tqdm) as bar:
                while not all(s.finished for s in bar.open):
                    self._step()
                    bar.update()
            return [s.take() for s in states]
        finally:
            self._abort(states)  # nothing to abort unless we leave by an error or Ctrl-C

    def _stream(self, prepared: Prepared) -> Generator[RequestOutput, None, None]:
        # Not before: a generator that never began runs no `finally`.
        state = self._open(_started_now(prepared))
        try:
            taken = -1
            while True:
                while not state.finished and sum(len(s.token_ids) for s in state.seqs) <= max(taken, 0):
                    self._step()
                output = state.take()
                taken = sum(len(s.token_ids) for s in state.seqs)
                yield output
                if output.finished:
                    return
        finally:
            self._abort([state])


def _several(name: str, given: Any, allowed: str) -> list[Any]:
    """What was given as a list. Raises InvalidRequest where it is none, or a text or a dict."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InvalidRequest.field(name, given, allowed)
    return list(given)


def _started_now(prepared: Prepared) -> Prepared:
    """The same request, as if it had come this moment: times to its first token count from here."""
    now = time.monotonic()
    requests = [msgspec.structs.replace(request, arrival=now) for request in prepared.requests]
    return msgspec.structs.replace(prepared, arrival=now, requests=requests)


def _is_one(prompts: object) -> bool:
    """One prompt, or a list of them? A list of integers is one."""
    if isinstance(prompts, str | Mapping):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and not isinstance(prompts[0], str | Mapping | Sequence)
