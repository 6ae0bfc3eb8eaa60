"""What the front half keeps of a model: tokenizer, chat template, sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.config.args import EngineArgs
from octavo.engine.front import Front
from octavo.errors import InvalidRequest, ModelError
from octavo.obs.log import get_logger
from octavo.text.chat import DEFAULT_ASK, Ask
from octavo.text.templates import ChatTemplates, choose, missing
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocab.cache import TokenizerCache, user_folder
from octavo.types import SamplingParams

log = get_logger(__name__)

DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""generation_config.json -> SamplingParams. Everything else in that file is left alone."""


class ModelFront(msgspec.Struct, frozen=True, kw_only=True):
    """Built once, when the engine has opened the model's files."""

    tokenizer: Tokenizer
    chat_template: ChatTemplates | None
    default_sampling: dict[str, Any]
    """SamplingParams fields to use where a request leaves them open."""
    template_names: tuple[str, ...] = ()
    """What the checkpoint has, chosen or not."""

    @classmethod
    def build(cls, front: Front, args: EngineArgs) -> ModelFront:
        """Raises ConfigError (an unreadable chat template) and ModelError (a tokenizer that cannot be built, a
        --chat-template that does not compile; the model's own is left for conversations to fail by)."""
        tokenizer = Tokenizer.from_spec(front.tokenizer_spec, cache=TokenizerCache(user_folder()))
        sources = choose(front.chat_templates, args.chat_template)
        template = ChatTemplates(sources, tokenizer=tokenizer) if sources else None
        if template is not None:
            try:
                template.check()
            except ModelError as error:
                if args.chat_template is not None:
                    raise
                log.warning("%s; completions work, conversations need another (--chat-template)", error)
        defaults = default_sampling(front.generation_config) if args.generation_config == "auto" else {}
        if defaults:
            listed = ", ".join(f"{k}={v}" for k, v in defaults.items())
            log.info("sampling defaults from the model: %s (--generation-config none turns them off)", listed)
        return cls(
            tokenizer=tokenizer,
            chat_template=template,
            default_sampling=defaults,
            template_names=tuple(front.chat_templates),
        )

    def render_chat(self, messages: Any, ask: Ask = DEFAULT_ASK) -> list[int]:
        """Token ids of a conversation. Raises InvalidRequest where there is no template or it refuses them."""
        if self.chat_template is None:
            raise missing(self.template_names)
        return self.chat_template.encode(messages, ask)


def default_sampling(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The usable part of a generation_config, under our names. What SamplingParams refuses is left out and said."""
    chosen: dict[str, Any] = {}
    for theirs, ours in DEFAULTS.items():
        value = generation_config.get(theirs)
        if value is None:
            continue
        try:
            SamplingParams(**{ours: value})
        except InvalidRequest as error:
            log.warning("generation_config %s is left out: %s", theirs, error)
            continue
        chosen[ours] = value
    return chosen
