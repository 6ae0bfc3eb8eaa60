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

    def submit(self, plan: StepPlan) -> None:
        """Queue a plan. Never blocks."""
        self._queue.append(plan)

    def collect(self) -> StepResult:
        """Run the oldest plan and answer it. An exception of the step becomes `StepResult.error`."""
        return self.runner.execute(self._queue.popleft())

    def close(self) -> None:
        """Give threads and memory back."""
        self._queue.clear()
        self.runner.close()
