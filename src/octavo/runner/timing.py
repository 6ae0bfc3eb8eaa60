"""How long a step of a given shape really takes: a plan made by hand, run many times on a loaded model."""

from __future__ import annotations

import statistics
import time

import msgspec
import numpy as np

from octavo.config.args import EngineArgs
from octavo.errors import OctavoError
from octavo.program.cost import Step
from octavo.runner.loader import load_runner
from octavo.types import NewSeq, SamplingParams, SeqPlan, StepPlan

SECONDS = 3.0
LEAST, MOST = 5, 200


def time_step(args: EngineArgs, step: Step, *, groups: int) -> float:
    """Median seconds of a step of this shape, weights loaded, greedy sampling included. `groups`: of KV.

    The cache holds NaN before the step's own tokens: sums take as long as over numbers, and nothing need be computed
    first. Raises what loading raises, DoesNotFit too.
    """
    each = -(-step.context // args.block_size)
    blocks = step.seqs * groups * (each + 1)
    runner = load_runner(msgspec.structs.replace(args, num_kv_blocks=blocks + 1))
    try:
        runner.poison()  # touches the memory, so that the first step does not pay for it
        took: list[float] = []
        end = time.perf_counter() + SECONDS
        while len(took) < LEAST or (time.perf_counter() < end and len(took) < MOST):
            plan = _plan(step, number=len(took), each=each, groups=groups)
            result = runner.execute(plan)
            if result.error:
                raise OctavoError(f"the step could not be measured: {result.error}")
            took.append(result.seconds)
        return statistics.median(took[1:])
    finally:
        runner.close()


def _plan(step: Step, *, number: int, each: int, groups: int) -> StepPlan:
    """Sequences brought anew, each with blocks of its own."""
    count = step.tokens // step.seqs
    ids = np.full(step.context, 5, np.int32).tobytes()
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    seqs = []
    for slot in range(step.seqs):
        tables = [[1 + (slot * groups + g) * each + i for i in range(each)] for g in range(groups)]
        new = NewSeq(slot, ids, step.context, step.context - count, params)
        seqs.append(SeqPlan(slot, count, 1, 0, tables, new))
    return StepPlan(number, seqs, list(range(step.seqs)))
