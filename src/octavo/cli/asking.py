"""An engine for the length of a command, and a prompt for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from octavo.config.args import EngineArgs

if TYPE_CHECKING:
    from octavo.llm import AsyncLLM


@asynccontextmanager
async def engine(args: EngineArgs) -> AsyncIterator[AsyncLLM]:
    """An `AsyncLLM`, closed at the end."""
    from octavo.llm import AsyncLLM
    from octavo.llm.progress import LoadingBar

    with LoadingBar() as bar:
        llm = await AsyncLLM.start(args, on_progress=bar.update)
    try:
        yield llm
    finally:
        await llm.close()


def prompt_of(llm: AsyncLLM, text: str, *, raw: bool, system: str | None) -> str | list[int]:
    """The text under the chat template, or as it is (raw, or the model has no template)."""
    if raw or (llm.chat_template is None and system is None):
        return text
    head = [{"role": "system", "content": system}] if system else []
    return llm.render_chat([*head, {"role": "user", "content": text}])
