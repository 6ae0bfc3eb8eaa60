"""How long steps take: a few coefficients, expected at start and corrected by every step that ran.

    seconds = a + b * tokens + c * logit rows + d * keys read + e * keys seen

`StepCost` (facts.py) has what the Program's own cost says of a to e on a machine of this kind. What is learned is one
factor for each of them, by recursive least squares with forgetting (a Kalman filter whose state drifts): directions
that the steps so far do not tell apart, as tokens and rows while all decode, keep the ratio that the Program gave them.
"""

from __future__ import annotations

from typing import Protocol

from octavo.facts import StepCost
from octavo.sched.load import Load


class Pace(Protocol):
    """What the scheduler asks about time. Answers depend on the calls made before and on nothing else."""

    def seconds(self, load: Load) -> float:
        """Expected of a step; never less for a load that is more."""
        ...

    def learn(self, load: Load, seconds: float) -> None:
        """A step of this load took so long."""
        ...


NOISE = 0.08
"""Relative deviation of one step from the rule, as on a machine that does little else."""
DRIFT = 0.02
"""Relative change of a factor that each step may bring: about five steps count."""
DOUBT = 2.0
"""Standard deviation of a factor before anything was measured."""
OUTLIER = 3.0
"""Standard deviations beyond which a step teaches no more than at them: a page fault is not a new machine."""
LEAST = 0.02
"""No factor falls below: every token costs something."""
GRAIN = 2e-4
"""Seconds by which a step's time varies, however short it is."""


class LearnedPace:
    """A `Pace` that begins with what is expected and follows what is measured."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self.factors = [1.0] * 5
        """Of step, token, row, read, seen: measured over expected."""
        self._doubt = [[DOUBT * DOUBT if i == j else 0.0 for j in range(5)] for i in range(5)]

    def seconds(self, load: Load) -> float:
        cost = self._cost
        a, b, c, d, e = self.factors
        return (
            a * cost.step
            + b * cost.token * load.tokens
            + c * cost.row * load.rows
            + d * cost.read * load.read
            + e * cost.seen * load.seen
        )

    def learn(self, load: Load, seconds: float) -> None:
        cost, factors, doubt = self._cost, self.factors, self._doubt
        parts = (
            cost.step,
            cost.token * load.tokens,
            cost.row * load.rows,
            cost.read * load.read,
            cost.seen * load.seen,
        )
        for i, factor in enumerate(factors):
            if doubt[i][i] < DOUBT * DOUBT:
                doubt[i][i] += (DRIFT * factor) ** 2
        shared = [sum(d * x for d, x in zip(row, parts, strict=True)) for row in doubt]
        expected = sum(f * x for f, x in zip(factors, parts, strict=True))
        spread = sum(x * s for x, s in zip(parts, shared, strict=True)) + (NOISE * expected) ** 2 + GRAIN**2
        most = OUTLIER * spread**0.5
        surprise = max(-most, min(most, seconds - expected))
        for i, s in enumerate(shared):
            gain = s / spread
            factors[i] = max(LEAST, factors[i] + gain * surprise)
            row = doubt[i]
            for j, t in enumerate(shared):
                row[j] -= gain * t
