"""OpenAI's request and response bodies, with vLLM's extra parameters. Unknown fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

Nothing: TypeAlias = Annotated[list[Any], msgspec.Meta(max_length=0)]
"""The empty list."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool = False
    """Send one more event with `usage` and no choices before the stream ends."""
    include_obfuscation: bool = False
    """Accepted and ignored: nothing is padded here."""


class SamplingBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What completions and chat have in common. null means the default everywhere."""

    model: str | None = None
    """One of the names in /v1/models. Default: the first."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    """Answers to one prompt."""
    seed: int | None = None
    stop: str | list[str] | None = None
    """Up to 16 strings that end the answer."""
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    prompt_logprobs: int | None = None
    """Also score the prompt, with so many alternatives a token."""
    skip_special_tokens: bool | None = None
    priority: int = 0
    """Lower is served first, under the priority policy."""
    cache_salt: str | None = None
    """Only requests with the same salt share prefix-cache blocks."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Accepted and ignored, by design: it changes nothing about the answer."""
    safety_identifier: str | None = None
    """Accepted and ignored, by design."""
    prompt_cache_key: str | None = None
    """Accepted and ignored, by design: prefixes are cached whatever the key (cache_salt separates them)."""
    metadata: dict[str, str] | None = None
    """Accepted and ignored, by design: nothing is stored."""


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    """A text, a list of texts, a list of token ids, or a list of lists of token ids."""
    echo: bool | None = None
    """Put the prompt before the answer."""
    logprobs: int | None = None
    """Alternatives beside each token."""


class TextPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    """May be left out beside tool_calls."""
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """What an assistant thought before it said `content`; some templates show it again."""
    # Clients send answers back as they came, with what was empty in them; anything but empty is refused by name.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Nothing | None = None


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    """The name OpenAI now gives max_tokens."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    """End the prompt with the opening of the assistant's turn. Default: true, unless the final message goes on."""
    continue_final_message: bool = False
    """Go on with the last message instead of answering it."""
    tools: list[dict[str, Any]] | None = None
    """Functions, given to the chat template. Calls come back as the text that the model writes."""
    tool_choice: str | dict[str, Any] | None = None
    """auto, or none: the template is not told of the tools. A call cannot be forced."""
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the model's chat template."""


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: a prompt, or messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    """Begin with the BOS token where the model has one (prompt only; a chat template has its own)."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TextLogprobs(msgspec.Struct):
    """Completions style: parallel lists, one entry a token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | msgspec.UnsetType | None = msgspec.UNSET


class CompletionReply(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: str = "text_completion"


class ReplyMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None


class ChatReply(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    default_sampling: dict[str, Any]
    """What a request gets for fields it leaves out (from the model's generation_config)."""
    owned_by: str = "octavo"
    object: str = "model"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


class TokenizeReply(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeReply(msgspec.Struct):
    prompt: str
