"""Steps that only decode, for what measures the scheduler's own cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.probes.play import numbers, request
from octavo.config.scheduler import SchedulerConfig
from octavo.engine.messages import Outputs, encode
from octavo.executor.fake import fake_facts
from octavo.sched.scheduler import Scheduler
from octavo.types import StepPlan, StepResult


class _Instant:
    """Answers at once with one token a row: what is timed is the scheduler."""

    def __init__(self) -> None:
        self.plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> None:
        self.plan = plan

    def collect(self) -> StepResult:
        assert self.plan is not None
        return StepResult(self.plan.step, [[1] if row.rows else [] for row in self.plan.seqs])


def decode(streams: int, context: int, *, num_blocks: int = 0, rounds: int = 1) -> Iterator[Callable[[], None]]:
    """Gives, again and again for `rounds` whole blocks, what is to be measured: half a step of `streams` at `context`.

    That is schedule(), then update() with the message to the front end encoded; the executor answers between them.
    """
    facts = fake_facts(num_blocks=num_blocks or streams * (context // 16 + 16), model_len=2**20)
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=streams, max_num_batched_tokens=2**30), facts)
    for i in range(streams):
        scheduler.add(request(i, [i % 64, i // 64, *numbers(context - 2)], 16 * rounds + 8))
    executor = _Instant()

    def plan() -> None:
        made = scheduler.schedule()
        assert made is not None
        executor.submit(made)

    def land() -> None:
        outputs = scheduler.update(result)
        encode(Outputs(outputs, scheduler.stats(), [], [streams]))

    for _ in range(16 * rounds):
        yield plan
        result = executor.collect()
        yield land
