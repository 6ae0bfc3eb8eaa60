"""The executor of one machine: steps run in the caller's thread, which is thread 0 of the kernel team."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.config.args import EngineArgs
from octavo.types import StepPlan, StepResult

if TYPE_CHECKING:
    from octavo.runner.runner import Runner


class InlineExecutor:
    """Runs plans in order, each when it is collected."""

    def __init__(self, args: EngineArgs, *, on_progress: Callable[[str, float], None] | None = None) -> None:
        """Load the model named by `args`.

        `on_progress(phase, fraction)` is called as loading advances. Raises ModelError, DoesNotFit, FetchError.
        """
        from octavo.runner.loader import load_runner

        self.runner: Runner = load_runner(args, on_progress=on_progress)
        self.facts = self.runner.facts
        self._queue: deque[StepPlan] = deque()
        self._void = 0
        """Steps at the head of the queue that were planned on a step that failed."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan. Never blocks."""
        self._queue.append(plan)

    def collect(self) -> StepResult:
        """Run the oldest plan and answer it. An exception of the step becomes `StepResult.error`.

        Plans that were already submitted then are not run: each is answered by an error of its own.
        """
        plan = self._queue.popleft()
        if self._void:
            self._void -= 1
            return StepResult(step=plan.step, tokens=[[] for _ in plan.seqs], error="a step before it failed")
        result = self.runner.execute(plan)
        if result.error is not None:
            self._void = len(self._queue)
        return result

    def prepare(self, block: int) -> bool:
        """Touch some of the memory behind `block`; False when enough of it is ready."""
        return self.runner.prepare(block)

    def close(self) -> None:
        """Give threads and memory back."""
        self._queue.clear()
        self.runner.close()
