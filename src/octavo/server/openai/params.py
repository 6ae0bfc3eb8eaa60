"""From a request body to `SamplingParams`: the request's value, else the model's default, else the neutral one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequest, NotFound, UnsupportedField
from octavo.llm.intake import check_priority as check_priority
from octavo.llm.intake import check_salt, pack_ids
from octavo.server.decode import check_free_form
from octavo.server.openai.protocol import ChatBody, ChatMessage, CompletionBody, SamplingBody
from octavo.types import SamplingParams

# Equal names in the body and in SamplingParams.
_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "seed",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "logit_bias",
    "prompt_logprobs",
    "skip_special_tokens",
)
MAX_TOOLS = 128


def _common(body: SamplingBody, defaults: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(defaults)
    for name in _PLAIN:
        value = getattr(body, name)
        if value is not None:
            fields[name] = value
    if isinstance(body.stop, str):
        fields["stop"] = (body.stop,)
    elif body.stop:
        fields["stop"] = tuple(body.stop)
    if body.stop_token_ids:
        fields["stop_token_ids"] = tuple(body.stop_token_ids)
    check_salt(body.cache_salt)  # here, for what the engine is given may be made of it and the key
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: allowed only with stream: true", param="stream_options")
    return fields


def completion_params(body: CompletionBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Raises: InvalidRequest. max_tokens defaults to 16, as in OpenAI's API; 0 is allowed with echo."""
    fields = _common(body, defaults)
    if body.max_tokens == 0 and body.echo:
        fields["max_tokens"] = 1  # one is computed and not shown
        fields.pop("min_tokens", None)
    else:
        fields["max_tokens"] = body.max_tokens if body.max_tokens is not None else fields.get("max_tokens", 16)
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            fields["prompt_logprobs"] = body.logprobs
    return SamplingParams(**fields)


def chat_params(body: ChatBody, defaults: Mapping[str, Any]) -> SamplingParams:
    """Raises: InvalidRequest. Without max_tokens the answer may fill the model's length."""
    fields = _common(body, defaults)
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        raise InvalidRequest(
            f"max_tokens: got {older} beside max_completion_tokens {newer}, allowed: one of them", param="max_tokens"
        )
    limit = newer if newer is not None else older
    fields["max_tokens"] = limit if limit is not None else fields.get("max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: allowed only with logprobs: true", param="top_logprobs")
    if body.logprobs:
        try:
            return SamplingParams(**fields, logprobs=body.top_logprobs or 0)
        except InvalidRequest as error:
            if error.param != "logprobs":
                raise
            raise InvalidRequest(str(error).replace("logprobs:", "top_logprobs:", 1), param="top_logprobs") from None
    return SamplingParams(**fields)


def check_model(name: str | None, served: Sequence[str]) -> str:
    """The name to answer with. Raises: NotFound, listing what is served."""
    if name is None or name == "":
        return served[0]
    if name not in served:
        ours = ", ".join(repr(s) for s in served)
        raise NotFound(f"model {name[:200]!r} is not served here; served: {ours}")
    return name


def plain_messages(messages: Sequence[ChatMessage], limit: int) -> list[dict[str, Any]]:
    """Messages as the template takes them. Raises: InvalidRequest, UnsupportedField."""
    if not messages:
        raise InvalidRequest("messages: got none, allowed: at least one", param="messages")
    if len(messages) > limit:
        raise InvalidRequest(f"messages: got {len(messages)}, allowed: at most {limit}", param="messages")
    plain: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        # `developer` is OpenAI's newer word for `system`; templates know the older.
        role = "system" if message.role == "developer" else message.role
        plain.append({"role": role, "content": _content(message, f"messages[{index}]")})
        if message.tool_calls:
            check_free_form(f"messages[{index}].tool_calls", message.tool_calls)
            plain[-1]["tool_calls"] = message.tool_calls
        more = {
            "name": message.name,
            "tool_call_id": message.tool_call_id,
            "reasoning_content": message.reasoning_content,
        }
        plain[-1].update({name: value for name, value in more.items() if value is not None})
    return plain


def _content(message: ChatMessage, where: str) -> str | list[dict[str, str]] | None:
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(f"{where}.content: required", param=f"{where}.content")
    if message.content is None or isinstance(message.content, str):
        return message.content
    return [{"type": part.type, "text": part.text} for part in message.content]


def checked_tools(tools: list[dict[str, Any]] | None, choice: object) -> list[dict[str, Any]] | None:
    """The tools that the template is told of. Raises: InvalidRequest, UnsupportedField."""
    if choice not in (None, "none", "auto"):
        raise UnsupportedField(
            "tool_choice: not supported by this server but for 'auto' and 'none'", param="tool_choice"
        )
    if not tools:
        return None
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools: got {len(tools)}, allowed: at most {MAX_TOOLS}", param="tools")
    check_free_form("tools", tools)
    for index, tool in enumerate(tools):
        function = tool.get("function")
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if tool.get("type") != "function" or not named:
            allowed = '{"type": "function", "function": {"name": …}}'
            raise InvalidRequest(f"tools[{index}]: allowed: {allowed}", param=f"tools[{index}]")
    return None if choice == "none" else tools


def prompts_of(body: CompletionBody, vocab_size: int, limit: int) -> list[str | list[int]]:
    """One entry a prompt: text or token ids, in range. Raises: InvalidRequest."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest("prompt: got an empty list, allowed: text, token ids, or a list of either", param="prompt")
    kinds = {type(item) for item in given}
    if len(kinds) != 1:
        raise InvalidRequest("prompt: a list must hold only texts, only ids or only lists of ids", param="prompt")
    ids_alone = [item for item in given if isinstance(item, int)]
    prompts: list[str | list[int]]
    prompts = [ids_alone] if ids_alone else [item for item in given if not isinstance(item, int)]
    if len(prompts) > limit:
        raise InvalidRequest(f"prompt: got {len(prompts)} prompts, allowed: at most {limit}", param="prompt")
    for ids in prompts:
        if isinstance(ids, list):
            check_ids("prompt", ids, vocab_size)
    return prompts


def check_ids(name: str, ids: list[int], vocab_size: int) -> None:
    """Raises InvalidRequest for an empty list or an id that is none (S15)."""
    if not ids:
        raise InvalidRequest(f"{name}: got no token ids, allowed: at least one", param=name)
    pack_ids(ids, vocab_size=vocab_size, name=name)
