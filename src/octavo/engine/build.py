"""From arguments to an engine ready to step. What needs NumPy is named by strings, so that nothing here reaches it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.config.args import EngineArgs
from octavo.config.resolve import EngineConfig, resolve
from octavo.engine.core import EngineCore
from octavo.engine.fake import fake_facts, fake_front
from octavo.engine.front import Front
from octavo.executor import Executor, load_executor
from octavo.facts import Facts
from octavo.obs.log import get_logger
from octavo.sched.scheduler import Scheduler

log = get_logger(__name__)

OnProgress = Callable[[str, float], None]
"""(phase, fraction of it)."""

RESOLVE_MODEL = "octavo.weights.source:resolve_model"
LOCAL_MODEL = "octavo.weights.source:local_model"
OPEN_MODEL = "octavo.runner.opened:open_model"


@dataclass(slots=True, kw_only=True)
class Engine:
    """A built engine and what there is to know of it."""

    core: EngineCore
    facts: Facts
    config: EngineConfig


def _by_name(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def find_model(args: EngineArgs) -> EngineArgs:
    """The arguments with the model as a path, fetched if need be, so that it is looked up once. Raises FetchError."""
    if args.executor == "fake":
        return args
    source = _by_name(RESOLVE_MODEL)(
        args.model, cache_dir=args.download_dir, revision=args.revision, offline=args.offline
    )
    return _named(args, source)


def find_local(args: EngineArgs) -> EngineArgs | None:
    """As `find_model` where the model is on this machine; None where it would be fetched, or refused."""
    if args.executor == "fake":
        return args
    source = _by_name(LOCAL_MODEL)(args.model, cache_dir=args.download_dir, revision=args.revision)
    return None if source is None else _named(args, source)


def _named(args: EngineArgs, source: Any) -> EngineArgs:
    return msgspec.structs.replace(
        args, model=str(source.path), served_model_name=args.served_model_name or (source.name,)
    )


def read_front(found: EngineArgs) -> Front:
    """What the front half needs of a model that was found; no weights. Raises ModelError, FileFormatError."""
    if found.executor == "fake":
        return fake_front(found)
    checkpoint = _by_name(OPEN_MODEL)(found.model)
    return Front(
        name=(found.served_model_name or (found.model,))[0],
        tokenizer_spec=checkpoint.tokenizer_spec,
        chat_templates=checkpoint.chat_templates,
        generation_config=checkpoint.generation_config,
    )


def open_front(args: EngineArgs) -> tuple[EngineArgs, Front]:
    """Both."""
    found = find_model(args)
    return found, read_front(found)


def build_engine(args: EngineArgs, *, on_progress: OnProgress | None = None) -> Engine:
    """Load the model of `args` and put a scheduler over it.

    Raises ConfigError, DoesNotFit, ModelError, FetchError; nothing stays behind.
    """
    make = load_executor(args.executor)
    executor: Executor = make(fake_facts(args)) if args.executor == "fake" else make(args, on_progress=on_progress)
    try:
        facts = executor.facts
        config = resolve(args, facts)
        core = EngineCore(Scheduler(config.scheduler, facts), executor, depth=config.depth)
    except BaseException:
        executor.close()
        raise
    log.info(
        "%s (%s): %d KV blocks of %d positions, longest sequence %d, up to %d sequences and %d tokens a step, "
        "%s between tokens",
        config.model_names[0],
        facts.architecture,
        facts.num_blocks - 1,
        facts.block_size,
        config.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        f"at most {target:g} ms aimed for" if (target := config.scheduler.target_itl_ms) else "no target of time",
    )
    return Engine(core=core, facts=facts, config=config)
