"""`octavo explain`: what the engine will do with a model, and the least time a step takes, without loading weights."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.cli.errors import OK, UsageError
from octavo.cli.flags import parse
from octavo.cli.spec import Positional, Spec
from octavo.config.args import SERVER_ONLY, EngineArgs
from octavo.config.folders import user_cache

if TYPE_CHECKING:
    from octavo.program.cost import Step
    from octavo.program.roofline import Machine, Roofline


class ExplainFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    layers: int = 1
    """Layers to print op by op; the others are alike."""
    tokens: int | None = None
    """The least time of a step with this many tokens, on this machine. Default with --context: one a sequence."""
    context: int | None = None
    """Positions of each sequence after that step. Default with --tokens: what the tokens fill, at least 1024."""
    seqs: int = 1
    """Sequences that share the tokens equally."""
    measure: bool = False
    """Load the weights too and time that step: how much of the limit is reached."""
    remeasure: bool = False
    """Measure the machine again (under 3 s; it is kept in the user's cache)."""
    json: bool = False
    """As one JSON object: memory, and limits of the step (of three typical ones without --tokens and --context)."""

    def __post_init__(self) -> None:
        for name in ("layers", "seqs", "tokens", "context"):
            value = getattr(self, name)
            if value is not None and value < (0 if name == "layers" else 1):
                raise UsageError(f"--{name}: got {value}, allowed: 1 or more")
        if self.tokens is not None and self.tokens % self.seqs:
            raise UsageError(f"--tokens: got {self.tokens}, allowed: a multiple of --seqs ({self.seqs})")
        each = (self.tokens or self.seqs) // self.seqs
        if self.context is not None and self.context < each:
            raise UsageError(
                f"--context: got {self.context}, allowed: at least the step's own {each} tokens a sequence"
            )
        if self.measure and not self.wanted:
            raise UsageError("--measure: got no step to time, allowed: with --tokens or --context")

    @property
    def wanted(self) -> bool:
        """Whether a step was described."""
        return self.tokens is not None or self.context is not None


NOTES = """\
example: octavo explain smollm2 --tokens 32 --seqs 32 --context 1024     a step of 32 streams
         octavo explain smollm2 --tokens 512 --context 512               a prompt
Each op's time is bound by the bytes it moves or by the operations it does; both limits are measured on this machine.
"""

SPEC = Spec(
    "explain",
    "Print a model's program, memory, and the cost and least time of a step. No weights are loaded.",
    (ExplainFlags, EngineArgs),
    (Positional("model"),),
    NOTES,
    without=SERVER_ONLY,
)


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    args, flags = parsed[EngineArgs], parsed[ExplainFlags]
    if args.executor == "fake":
        raise UsageError("--executor: got 'fake', which has no program; allowed: native | reference")
    explained = Explained(args, flags)
    if flags.json:
        print(msgspec.json.format(msgspec.json.encode(explained.as_json()), indent=2).decode())
    else:
        print(explained.limit_text() if flags.wanted else explained.text())
    return OK


class Explained:
    """A model planned for this machine. What needs NumPy is loaded by name: the command line itself reaches it by no
    path (pyproject.toml, contract "forbidden")."""

    def __init__(self, args: EngineArgs, flags: ExplainFlags) -> None:
        from octavo.weights.source import resolve_model

        source = resolve_model(
            args.model, cache_dir=args.download_dir, revision=args.revision, offline=args.offline, progress=True
        )
        self.name, self.flags = source.name, flags
        most = max(args.step_tokens, flags.tokens or 0, flags.seqs)
        self.args = msgspec.structs.replace(
            args,
            model=str(source.path),
            max_num_seqs=max(args.max_num_seqs, flags.seqs),
            max_num_batched_tokens=most if flags.wanted else args.max_num_batched_tokens,
        )
        loader = importlib.import_module("octavo.runner.loader")
        self.checkpoint = importlib.import_module("octavo.runner.opened").open_model(source.path)
        self.planned = loader.plan_model(self.args, self.checkpoint)
        if flags.context is not None and flags.context > self.planned.program.max_len:
            raise UsageError(
                f"--context: got {flags.context}, allowed: up to {self.planned.program.max_len} (the model's)"
            )

    def text(self) -> str:
        """Program, executable, memory and cost; then weights by format and the memory plan of this machine."""
        module = importlib.import_module("octavo.program.explain")
        text: str = module.explain(self.planned.spec, layers=self.flags.layers)
        weights = "\n".join(f"  {line}" for line in (*self.checkpoint.notes, *self.planned.formats.lines))
        return f"{text}\nWeights:\n{weights}\n\nMemory plan:\n{self.planned.memory.table()}"

    def steps(self) -> list[Step]:
        """The step that was described, else three typical ones."""
        cost = importlib.import_module("octavo.program.cost")
        flags = self.flags
        if not flags.wanted:
            typical: list[Step] = [cost.Step.decode(1, 1024), cost.Step.decode(32, 256), cost.Step.prefill(512)]
            return [step for step in typical if step.context <= self.planned.program.max_len]
        tokens = flags.tokens or flags.seqs
        each = tokens // flags.seqs
        context = flags.context or min(max(1024, each), self.planned.program.max_len)
        found: Step = cost.Step(tokens=tokens, rows=flags.seqs, seqs=flags.seqs, context=context)
        return [found]

    def machine(self) -> tuple[Machine, Any]:
        """The roof, and all that was measured."""
        roof = importlib.import_module("octavo.program.roofline")
        native = importlib.import_module("octavo.kernels.native")
        limits = importlib.import_module("octavo.kernels.limits").machine_limits(
            roof.weight_formats(self.planned.spec),
            threads=self.args.threads or native.default_threads(),
            file=user_cache() / "limits.json",
            remeasure=self.flags.remeasure,
        )
        peaks = {name: limits.peaks[name] for name in roof.weight_formats(self.planned.spec)}
        return roof.Machine(read=limits.read, peaks=peaks, cache_bytes=limits.cache_bytes), limits

    def measured(self, step: Step) -> float | None:
        """Seconds of the real step where that was asked for."""
        if not self.flags.measure:
            return None
        if step.context >= self.planned.program.max_len:
            raise UsageError(f"--measure: got --context {step.context}, allowed: below {self.planned.program.max_len}")
        timing = importlib.import_module("octavo.runner.timing")
        seconds: float = timing.time_step(self.args, step, groups=len(self.planned.spec.kv))
        return seconds

    def limit_text(self) -> str:
        """The table of one step."""
        roof = importlib.import_module("octavo.program.roofline")
        machine, limits = self.machine()
        head = f"{self.name} on {limits.cpu} ({limits.isa}, {limits.threads} threads)"
        (step,) = self.steps()
        found: Roofline = roof.roofline(self.planned.spec, step, machine)
        text: str = roof.roofline_text(found, machine, measured=self.measured(step))
        weights = "\n".join(f"  {line}" for line in self.planned.formats.lines)
        return f"{head}\n{text}\nWeights:\n{weights}"

    def as_json(self) -> dict[str, Any]:
        """Plain data; times in seconds, rates a second."""
        roof = importlib.import_module("octavo.program.roofline")
        machine, limits = self.machine()
        spec, steps = self.planned.spec, []
        for step in self.steps():
            found: Roofline = roof.roofline(spec, step, machine)
            whole = {"flops": found.flops, "bytes": found.bytes, "seconds": found.seconds}
            rate = {"tokens_per_second": step.tokens / found.seconds, "measured_seconds": self.measured(step)}
            steps.append({"step": step, "ops": found.lines, "total": {**whole, **rate}})
        memory = {"weights": spec.weights_bytes, "activations": spec.arena_bytes, "kv_block": spec.block_bytes}
        return {"model": self.name, "memory_bytes": memory, "machine": limits, "steps": steps}
