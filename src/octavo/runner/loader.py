"""From arguments to a runner: program, formats, memory plan, then weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from octavo.config.args import EngineArgs
from octavo.facts import Facts, KVGroup
from octavo.kernels import BACKENDS
from octavo.models.registry import architecture, build_program
from octavo.obs.log import get_logger
from octavo.program.executable import ExecutableSpec, Limits
from octavo.program.expected import expected_cost
from octavo.program.formats import choose_formats
from octavo.program.ir import Program
from octavo.program.lower import lower
from octavo.program.split import split_joins
from octavo.quant.table import Wishes
from octavo.runner.advice import fit_memory
from octavo.runner.memory import Machine, MemoryPlan, Need
from octavo.runner.opened import open_model
from octavo.runner.runner import Backend, Runner
from octavo.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from octavo.program.formats import Formats

log = get_logger(__name__)

Progress = Callable[[str, float], None]
"""(phase, fraction of it that is done)."""

MAX_ROWS = 256
"""Most rows of logits that exist at a time beyond one a sequence (prompt_logprobs goes in tiles)."""
LOGIT_BYTES = 64 << 20
"""Most bytes of those rows: with a large vocabulary there are fewer."""

LOADERS: Mapping[str, str] = {
    "native": "octavo.runner.native:load",
    "reference": "octavo.runner.reference:load",
}
"""Backend -> "module:function", a `Load`."""


class Load(Protocol):
    """Makes a backend: reserves what the plan says and reads the weights."""

    def __call__(
        self,
        args: EngineArgs,
        spec: ExecutableSpec,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        progress: Callable[[float], None],
    ) -> tuple[Backend, str, int]:
        """The backend, the instruction set it runs on, and its number of threads."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known before weights load: enough to explain a model."""

    program: Program
    formats: Formats
    spec: ExecutableSpec
    memory: MemoryPlan


def plan_model(args: EngineArgs, checkpoint: Checkpoint, *, machine: Machine | None = None) -> Planned:
    """Everything but the weights.

    Raises ModelError (not servable), ConfigError (wishes that contradict) and DoesNotFit (the memory plan).
    """
    drafts = _Drafts(checkpoint)
    memory = fit_memory(args, lambda wanted: drafts.of(wanted).need, machine or Machine.read())
    draft = drafts.of(args)
    spec = draft.spec
    if memory.model_len != spec.limits.max_len:
        spec = _lower(args, draft.program, draft.formats, max_len=memory.model_len)
    return Planned(draft.program, draft.formats, spec, memory)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A model lowered for the longest sequence that was asked for, and what that takes."""

    program: Program
    formats: Formats
    spec: ExecutableSpec
    need: Need


class _Drafts:
    """One checkpoint under many settings; remembers the last, which is planned again once it fits."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._stored: dict[Wishes, tuple[Program, Formats]] = {}
        self._last: tuple[EngineArgs, _Draft] | None = None

    def of(self, args: EngineArgs) -> _Draft:
        if self._last is None or self._last[0] != args:
            self._last = args, self._make(args)
        return self._last[1]

    def _make(self, args: EngineArgs) -> _Draft:
        program, formats = self._store(Wishes(dtype=args.dtype, quantization=args.quantization))
        wanted = min(args.max_model_len or program.max_len, program.reach)
        spec = _lower(args, program, formats, max_len=wanted)
        need = Need(
            weights=spec.weights_bytes + spec.hosted_bytes,
            buffers=spec.arena_bytes + 4 * args.max_num_seqs * (wanted + spec.limits.max_blocks),
            block=spec.block_bytes,
            groups=kv_groups(program),
            model_len=program.reach if args.max_model_len else program.max_len,
        )
        return _Draft(program, formats, spec, need)

    def _store(self, wishes: Wishes) -> tuple[Program, Formats]:
        """Which matrices there are, and the format of each: the same for every size of step."""
        if wishes not in self._stored:
            tensors = self._checkpoint.tensors
            program = split_joins(build_program(self._checkpoint.config), tensors, wishes)
            self._stored[wishes] = program, choose_formats(program, tensors, wishes)
        return self._stored[wishes]


def _lower(args: EngineArgs, program: Program, formats: Formats, *, max_len: int) -> ExecutableSpec:
    limits = Limits(
        max_tokens=args.step_tokens,
        max_rows=max(args.max_num_seqs, min(scored_rows(program.vocab_size), args.step_tokens)),
        max_seqs=args.max_num_seqs,
        max_len=max_len,
        block_size=args.block_size,
    )
    return lower(program, formats.by_weight, limits, BACKENDS[args.executor], kv_dtype=kv_dtype(args))


def scored_rows(vocab_size: int) -> int:
    """Rows of float32 logits that a tile of prompt_logprobs has: at most MAX_ROWS, and LOGIT_BYTES of them."""
    return max(1, min(MAX_ROWS, LOGIT_BYTES // (4 * vocab_size)))


def kv_groups(program: Program) -> tuple[KVGroup, ...]:
    """The Program's groups, as the scheduler sees them."""
    return tuple(KVGroup(name=g.name, kind=g.kind, layers=g.layers, window=g.window) for g in program.groups)


def kv_dtype(args: EngineArgs) -> str:
    """bf16, f32 or int8: the plan's field."""
    if args.kv_cache_dtype == "auto":
        return "f32" if args.dtype == "float32" else "bf16"
    return {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}[args.kv_cache_dtype]


def load_runner(args: EngineArgs, *, on_progress: Progress | None = None) -> Runner:
    """Load `args.model` (a path: `weights.source.resolve_model` makes one) onto the backend `args.executor`.

    Raises ModelError, FileFormatError, ConfigError and DoesNotFit, the last before any weight is read.
    """
    report = on_progress or (lambda phase, fraction: None)
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    report("plan", 0.0)
    checkpoint = open_model(args.model)
    planned = plan_model(args, checkpoint)
    for note in checkpoint.notes:
        log.info("weights: %s", note)
    _log_plan(planned)
    seconds["plan"] = time.perf_counter() - began
    report("plan", 1.0)

    began = time.perf_counter()
    module, _, attribute = LOADERS[args.executor].partition(":")
    load: Load = getattr(import_module(module), attribute)
    backend, isa, threads = load(
        args,
        planned.spec,
        checkpoint,
        num_blocks=planned.memory.num_blocks,
        progress=lambda fraction: report("weights", fraction),
    )
    seconds["weights"] = time.perf_counter() - began
    report("weights", 1.0)
    facts = _facts(args, checkpoint, planned, isa=isa, threads=threads, seconds=seconds)
    limits = planned.spec.limits
    return Runner(backend, facts, max_seqs=limits.max_seqs, max_rows=limits.max_rows, max_blocks=limits.max_blocks)


def _log_plan(planned: Planned) -> None:
    for line in planned.formats.lines:
        log.info("weights: %s", line)
    for line in planned.spec.ropes():
        log.info("%s", line)
    for note in planned.spec.notes:
        log.warning("%s", note)
    log.info("memory plan:\n%s", planned.memory.table())
    if planned.memory.reduced:
        log.warning(
            "the longest sequence is %d positions, not the model's %d: the KV cache holds no more "
            "(--kv-cache-memory-bytes)",
            planned.memory.model_len,
            planned.program.max_len,
        )


def _facts(
    args: EngineArgs, checkpoint: Checkpoint, planned: Planned, *, isa: str, threads: int, seconds: dict[str, float]
) -> Facts:
    spec, memory = planned.spec, planned.memory
    return Facts(
        model_name=(args.served_model_name or (Path(args.model).name,))[0],
        architecture=architecture(checkpoint.config),
        vocab_size=planned.program.vocab_size,
        model_len=memory.model_len,
        groups=kv_groups(planned.program),
        block_size=args.block_size,
        block_bytes=spec.block_bytes,
        num_blocks=memory.num_blocks,
        eos_ids=eos_ids(checkpoint),
        isa=isa,
        threads=threads,
        weights_bytes=spec.weights_bytes,
        load_seconds=seconds,
        step_cost=expected_cost(spec, isa=isa, threads=threads),
    )


def eos_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Every id that ends a turn, from the config and from generation_config.json."""
    found: list[int] = []
    for source in (checkpoint.config, checkpoint.generation_config):
        value: Any = source.get("eos_token_id")
        if value is not None:
            found += value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(int(i) for i in found))
