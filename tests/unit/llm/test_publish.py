"""What the engine counts reaches /metrics: no number of its snapshot is sent for nothing."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from octavo.engine.messages import EngineStats, Outputs
from octavo.llm.outputs import publish
from octavo.obs.metrics import Metrics, Value
from octavo.sched.stats import GroupStats

ELSEWHERE = {
    "computed_tokens": "the engine makes step_tokens of it",
    "blocks_used": "a part of kv_usage",
    "blocks_total": "a part of kv_usage",
}


def test_every_number_of_the_snapshot_is_published() -> None:
    numbers: dict[str, Any] = {name: 1001 + i for i, name in enumerate(typing.get_type_hints(EngineStats))}
    numbers["groups"] = (GroupStats(name="full", blocks_used=501, waste=502),)
    stats = msgspec.convert(numbers, EngineStats)
    metrics = Metrics()
    publish(metrics, Outputs([], stats, [], [7, 8]))
    values = [metric for metric in metrics.declared() if isinstance(metric, Value)]
    shown = {metric.value for metric in values} | {n for metric in values for n in metric.by_label.values()}
    missing = {name for name, number in numbers.items() if name != "groups" and number not in shown}
    assert missing == set(ELSEWHERE)
    assert {501, 502, stats.kv_usage} <= shown
    assert metrics.step_tokens.sum == 15
