"""What a user may wish for. `None` and "auto" mean: decide for me; `resolve` leaves neither."""

from __future__ import annotations

import functools
import re
import types
import typing
from typing import Any, Literal

import msgspec

from octavo.config.policy import DEFAULT_POLICY, PolicyName
from octavo.config.scheduler import SchedulerConfig
from octavo.errors import ConfigError, shown

SERVER_ONLY = ("served_model_name", "max_queue")
"""Fields that say nothing to an engine without a server."""


class EngineArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that shapes an engine. Flag and keyword names are vLLM's where the meaning is the same."""

    model: str
    """A directory or .gguf file, a name as `octavo list` shows it, a Hugging Face id (owner/name or owner/name:Q4_K_M),
    or a name of the catalogue (smollm2)."""
    served_model_name: tuple[str, ...] = ()
    """Names under which the API serves the model; the first is the one it reports. Default: the model's own."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    download_dir: str | None = None
    """Where fetched models are kept. Default: the user's cache."""
    offline: bool = False
    """Never fetch; fail where the model is not at hand."""
    executor: Literal["native", "reference", "fake"] = "native"
    """Who computes: the C++ kernels, the NumPy reference (slow, the specification), or a stand-in without a model."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: as the file stores it. float32: the exact mode. bfloat16: float tensors as bfloat16."""
    quantization: Literal["none", "int8", "int4", "compressed-tensors"] | None = None
    """How linear layers of a float checkpoint are stored: int8 in groups of 32, or int4, a mixture (4 bits in the gates
    and ups of every second inner layer, 8 where quality asks for it). compressed-tensors: W8A8 directories as they
    say, activations with one scale a token, not for each 32 columns; faster, and coarser. Default: as they are."""
    kv_cache_dtype: Literal["auto", "bfloat16", "float32", "int8"] = "auto"
    """auto: bfloat16, or float32 with --dtype float32. int8: half the memory, a scale per token and KV head;
    costs 0.1 % of perplexity or less on the models measured (docs/performance.md)."""
    block_size: Literal[8, 16, 32, 64] = 16
    """Positions in a KV block."""
    max_model_len: int | None = None
    """Longest sequence, prompt and answer. Default: the model's own, or what fits in memory."""
    max_num_seqs: int = 128
    """Most sequences in one step."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one step. Default: 256, and never below max_num_seqs."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0: the whole budget."""
    target_itl_ms: float | None = None
    """Milliseconds between a stream's tokens to aim for: while a stream decodes, steps take only so much of a prompt
    (at least 16 tokens). 0: off, the token budget alone rules. Default: 100, more for large models."""
    kv_cache_memory_bytes: int | None = None
    """Memory for KV blocks. Default: room for max_num_seqs at a typical length, or half of free memory if less."""
    num_kv_blocks: int | None = None
    """Exact number of KV blocks, over all KV groups (tests, experiments)."""
    enable_prefix_caching: bool = True
    """Reuse KV blocks of equal prefixes."""
    scheduling_policy: PolicyName = DEFAULT_POLICY
    """Who goes first: first come, or (priority, first come)."""
    threads: int | None = None
    """Kernel threads. Default: one per physical core this process may use."""
    cpus: str | None = None
    """CPUs to run on, as in "0-3,8": a server's two halves (AsyncLLM's engine) keep to them, and each kernel thread but
    the one that steps to one of them. Default: all that this process may use, and nobody is pinned."""
    seed: int | None = None
    """Makes the seeds that the engine draws for requests without one repeatable."""
    depth: int = 1
    """Steps in flight."""
    chain: int = 1
    """How many steps in flight may hold the same sequence."""
    max_queue: int = 1024
    """Requests that may wait; one more is refused (HTTP 503 with Retry-After)."""
    generation_config: Literal["auto", "none"] = "auto"
    """auto: sampling defaults come from the model's generation_config.json; they are logged at start."""
    chat_template: str | None = None
    """A Jinja file, the template itself (with {{ or {% in it), or the name of one of the model's own (tool_use)."""

    def __post_init__(self) -> None:
        """Raises ConfigError: the option as a flag, what was got, what is allowed."""
        self._check_types()
        low: dict[str, float] = {
            "max_model_len": 1,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 1,
            "long_prefill_token_threshold": 0,
            "target_itl_ms": 0,
            "kv_cache_memory_bytes": 1,
            "num_kv_blocks": 2,
            "threads": 1,
            "depth": 1,
            "chain": 1,
            "max_queue": 1,
        }
        for name, least in low.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"--{name.replace('_', '-')}: got {value}, allowed: {least} or more")
        if not all(name.strip() for name in self.served_model_name):
            raise ConfigError(
                f"--served-model-name: got {', '.join(map(repr, self.served_model_name))}, allowed: names"
            )
        if self.chain > self.depth:
            raise ConfigError(f"--chain: got {self.chain}, allowed: at most --depth ({self.depth})")
        if self.max_num_seqs > 4096:
            raise ConfigError(f"--max-num-seqs: got {self.max_num_seqs}, allowed: at most 4096")
        if self.dtype == "float32" and self.kv_cache_dtype == "int8":
            raise ConfigError(
                "--kv-cache-dtype: got int8 with --dtype float32, the exact mode, allowed: auto, bfloat16, float32"
            )
        tokens = self.max_num_batched_tokens
        if tokens is not None and tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens: got {tokens}, allowed: at least --max-num-seqs ({self.max_num_seqs}), "
                "since a step holds one token for each running sequence"
            )

    def _check_types(self) -> None:
        """A Struct's constructor takes anything; a list where a tuple is meant becomes one."""
        try:
            read = msgspec.convert(self, _mirror(), from_attributes=True)
        except msgspec.ValidationError as error:
            found = re.search(r"`\$\.(\w+)", str(error))
            if found is None:
                raise ConfigError(f"EngineArgs: {error}") from None
            raise wrong_value(found[1], getattr(self, found[1])) from None
        for name in self.__struct_fields__:
            if (value := getattr(read, name)) is not getattr(self, name):
                msgspec.structs.force_setattr(self, name, value)

    @property
    def step_chunk(self) -> int:
        """Most positions of one sequence in one step, as the scheduler will count them."""
        return self.scheduler().chunk

    def scheduler(self) -> SchedulerConfig:
        """What the wishes alone say about the scheduler; `resolve` adds what the model says."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            target_itl_ms=self.target_itl_ms or 0.0,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=self.scheduling_policy,
            chain=self.chain,
        )

    @property
    def step_tokens(self) -> int:
        """Resolved max_num_batched_tokens."""
        return self.max_num_batched_tokens or max(256, self.max_num_seqs)


@functools.cache
def _mirror() -> type[msgspec.Struct]:
    """The fields of EngineArgs alone: converting to them checks types and nothing else."""
    fields = msgspec.structs.fields(EngineArgs)
    return msgspec.defstruct("_Mirror", [(field.name, field.type) for field in fields])


def wrong_value(name: str, got: object) -> ConfigError:
    """The error for a value of the wrong type."""
    from octavo.config.rivals import value_advice  # only a refusal needs it

    flag = f"--{name.replace('_', '-')}"
    allowed = _allowed(typing.get_type_hints(EngineArgs)[name])
    return ConfigError(f"{flag}: got {shown(got)}, allowed: {allowed}{value_advice(flag, got)}")


def _allowed(kind: Any) -> str:
    """A field's type, for people."""
    if typing.get_origin(kind) is Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list of texts"
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_allowed(each) for each in typing.get_args(kind))
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
    return names[kind]
