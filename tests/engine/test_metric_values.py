"""What /metrics says agrees with what happened: one scenario with a hit, a preemption and a queue, all told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo import AsyncLLM, EngineArgs, SamplingParams
from octavo.engine.messages import Outputs
from octavo.errors import PromptTooLong
from octavo.llm import async_llm
from octavo.llm.outputs import publish
from octavo.obs.metrics import Metrics
from octavo.types import RequestOutput
from tests.engine.conftest import empty, fake_args
from tests.metric_names import FAMILIES
from tests.tiny import write_tiny

POOL: dict[str, Any] = {"num_kv_blocks": 13, "max_num_seqs": 2, "max_model_len": 160, "max_num_batched_tokens": 64}
"""Twelve blocks of 16: two of the requests below fit while they are short, and not when they are long."""
PROMPT, ANSWER, SHARED = 40, 100, 32
TIMES = ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time")
TIMES_OF_TOKENS = ("request_decode_time", "request_time_per_output_token")
EMPTY_YET = {"lora_requests_info", "spec_decode_num_drafts", "spec_decode_num_draft_tokens"} | {
    "spec_decode_num_accepted_tokens"
}
"""Of requirements' families, those that this engine has nothing to say of: no adapters, no drafts."""


@dataclass
class Seen:
    """Scraped values: `most` of the gauges at any step, `last` of everything at the end."""

    most: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    outputs: list[RequestOutput] = field(default_factory=list)

    def total(self, name: str) -> float:
        """Over all labels of a sample."""
        return sum(v for k, v in self.last.items() if k.partition("{")[0] == f"octavo:{name}")


def scrape(llm: AsyncLLM) -> tuple[dict[str, float], dict[str, dict[str, str]]]:
    """Samples by name and labels but the model's, and the labels of each name's last sample."""
    values: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}
    for family in text_string_to_metric_families(llm.metrics.render().decode()):
        for sample in family.samples:
            labels[sample.name] = {k: v for k, v in sample.labels.items() if k != "model_name"}
            words = ",".join(f"{k}={v}" for k, v in sorted(labels[sample.name].items()))
            values[f"{sample.name}{{{words}}}"] = sample.value
    return values, labels


def prompt(i: int) -> list[int]:
    """Two blocks that all share, then its own."""
    return [*range(SHARED), *(100 + 20 * i + j for j in range(PROMPT - SHARED))]


async def scenario(llm: AsyncLLM) -> Seen:
    """One request alone; then three at once, of which two run, one waits, and one is preempted; and a refused one."""
    seen = Seen()
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=0)

    async def ask(i: int) -> RequestOutput:
        return [o async for o in llm.generate(prompt(i), params, stream=False)][-1]

    def look(metrics: Metrics, message: Outputs) -> None:
        publish(metrics, message)
        for gauge in (metrics.running, metrics.waiting, metrics.kv_usage):
            name = f"octavo:{gauge.name}{{}}"  # as scraped; to format all of them at every step would take seconds
            seen.most[name] = max(gauge.value, seen.most.get(name, 0.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(async_llm, "publish", look)
        seen.outputs.append(await ask(0))
        seen.outputs += await asyncio.gather(*(ask(i) for i in (1, 2, 3)))
    with pytest.raises(PromptTooLong):
        await anext(llm.generate([1] * 200, params))
    await empty(llm)
    seen.last, seen.labels = scrape(llm)
    return seen


def judge(seen: Seen, llm: AsyncLLM) -> None:
    stats, count = llm.stats(), 4
    # Gauges of the moment, and their end.
    assert seen.most["octavo:num_requests_running{}"] == 2 and seen.most["octavo:num_requests_waiting{}"] >= 1
    assert 0.5 < seen.most["octavo:kv_cache_usage_perc{}"] <= 1
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert seen.last[f"octavo:{name}{{}}"] == 0
    # Counters.
    assert all(len(o.outputs[0].token_ids) == ANSWER for o in seen.outputs)
    assert seen.total("prompt_tokens_total") == seen.total("prefix_cache_queries_total") == count * PROMPT
    assert seen.total("generation_tokens_total") == count * ANSWER
    hits = sum(o.num_cached_tokens for o in seen.outputs)
    assert seen.total("prefix_cache_hits_total") == hits == 3 * SHARED, "all but the first read the shared blocks"
    assert seen.total("num_preemptions_total") == stats.preemptions >= 1
    assert seen.total("recomputed_tokens_total") == stats.redone_tokens > 0, "who was preempted was computed again"
    assert seen.total("steps_failed_total") == seen.total("requests_clamped_total") == 0
    assert seen.total("kv_blocks_cached") == stats.blocks_cached > 0
    assert seen.last["octavo:request_success_total{finished_reason=length}"] == count
    assert seen.last["octavo:admission_rejections_total{reason=invalid}"] == 1
    # Histograms of times: one observation a request, and the parts add up.
    for name in (*TIMES, *TIMES_OF_TOKENS):
        assert seen.total(f"{name}_seconds_count") == count and seen.total(f"{name}_seconds_sum") > 0, name
    ttft, e2e, queue, prefill = (seen.total(f"{name}_seconds_sum") for name in TIMES)
    decode, per_token = (seen.total(f"{name}_seconds_sum") for name in TIMES_OF_TOKENS)
    assert queue + prefill == pytest.approx(ttft) and decode == pytest.approx((ANSWER - 1) * per_token)
    assert ttft + decode == pytest.approx(e2e, rel=0.2)
    gaps = seen.total("inter_token_latency_seconds_count"), seen.total("inter_token_latency_seconds_sum")
    assert gaps[0] == count * (ANSWER - 1) and gaps[1] == pytest.approx(decode)
    sizes = {"prompt_tokens": PROMPT, "generation_tokens": ANSWER, "max_num_generation_tokens": ANSWER}
    for name, size in {**sizes, "params_max_tokens": ANSWER, "params_n": 1}.items():
        assert seen.total(f"request_{name}_count") == count and seen.total(f"request_{name}_sum") == count * size, name
    assert seen.total("iteration_tokens_total_count") == seen.total("steps_total") == stats.steps
    assert seen.total("iteration_tokens_total_sum") == stats.computed_tokens
    # How the cache is configured.
    assert seen.total("cache_config_info") == 1
    assert seen.labels["octavo:cache_config_info"] == {
        "block_size": "16",
        "num_gpu_blocks": "12",
        "block_bytes": str(llm.facts.block_bytes),
        "enable_prefix_caching": "True",
    }


def at_zero(seen: Seen) -> set[str]:
    """Families that said nothing but 0 from beginning to end."""
    said = {name.partition("{")[0] for source in (seen.most, seen.last) for name, value in source.items() if value}
    return {name for name in FAMILIES if not any(f"octavo:{name}{end}" in said for end in ("", "_total", "_count"))}


def serve(args: EngineArgs) -> tuple[Seen, Mapping[str, float]]:
    """The scenario, judged; what it saw, and the phases of the start beside its whole time."""

    async def run() -> tuple[Seen, Mapping[str, float]]:
        began = time.monotonic()
        async with await AsyncLLM.start(args) as llm:
            took = time.monotonic() - began
            seen = await asyncio.wait_for(scenario(llm), 60)
            judge(seen, llm)
            return seen, {"whole": took, **llm.facts.load_seconds}

    return asyncio.run(run())


def test_values_on_the_fake() -> None:
    seen, _ = serve(fake_args(**POOL))
    assert at_zero(seen) == EMPTY_YET | {"startup_seconds"}, "the fake loads nothing"


def test_values_on_a_model(tmp_path: Path) -> None:
    seen, start = serve(EngineArgs(model=str(write_tiny(tmp_path, "llama")), executor="reference", **POOL))
    assert at_zero(seen) == EMPTY_YET
    phases = {name: seen.last[f"octavo:startup_seconds{{phase={name}}}"] for name in ("plan", "weights")}
    assert phases == {name: start[name] for name in phases} and seen.total("startup_seconds") == sum(phases.values())
    assert all(seconds > 0 for seconds in phases.values()) and sum(phases.values()) < start["whole"]
