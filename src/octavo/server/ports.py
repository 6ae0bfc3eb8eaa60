"""The surface of `octavo.llm.AsyncLLM` that the server uses, so that tests can stand something else in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from octavo.config.resolve import EngineConfig
from octavo.engine.messages import EngineStats
from octavo.facts import Facts
from octavo.obs.metrics import Metrics
from octavo.text.detokenize import Spelling
from octavo.types import RequestOutput, SamplingParams


class TokenizerPort(Spelling, Protocol):
    """`octavo.text.Tokenizer`, as far as the server looks."""

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int, /) -> str: ...


class LLMPort(Protocol):
    """`octavo.llm.AsyncLLM`."""

    @property
    def facts(self) -> Facts: ...

    @property
    def config(self) -> EngineConfig: ...

    @property
    def tokenizer(self) -> TokenizerPort: ...

    @property
    def chat_template(self) -> object | None: ...

    @property
    def default_sampling(self) -> Mapping[str, Any]: ...

    @property
    def model_names(self) -> Sequence[str]: ...

    @property
    def metrics(self) -> Metrics: ...

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        stream: bool = True,
    ) -> AsyncIterator[RequestOutput]:
        """With `stream` outputs as the answer grows, else the last only. Closing or cancelling the iterator aborts.
        Raises, before the first item: InvalidRequest, PromptTooLong, QueueFull, EngineDead."""
        ...

    async def render_chat_async(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Long conversations are rendered on a thread, so that nobody else waits (R16). Raises: InvalidRequest."""
        ...

    def check_health(self) -> None:
        """Raises EngineDead."""
        ...

    def stats(self) -> EngineStats:
        """The last snapshot."""
        ...

    async def close(self) -> None: ...
