"""Names dashboards know, each declared once."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from octavo.obs.metrics import Histogram, Metrics
from tests.metric_names import FAMILIES, GRAFANA

EXPECTED = FAMILIES | {
    "steps", "steps_cut", "step_seconds", "step_expected_seconds", "step_missed_seconds", "target_itl_seconds",
    "steps_failed", "recomputed_tokens", "requests_clamped", "kv_blocks_cached",
}  # fmt: skip


def families(metrics: Metrics) -> dict[str, object]:
    return {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}


def test_every_known_name_is_declared_once() -> None:
    names = [m.name for m in Metrics().declared()]
    assert len(names) == len(set(names))
    assert set(names) >= EXPECTED


def test_vllms_board_finds_every_sample_it_asks_for() -> None:
    metrics = Metrics(prefix="vllm:", model="m")
    metrics.success.inc(label="stop")
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        found.update({sample.name: sample.labels for sample in family.samples})
    assert {f"vllm:{name}" for name in GRAFANA} - set(found) == set()
    assert all(found[f"vllm:{name}"]["model_name"] == "m" for name in GRAFANA)
    assert found["vllm:request_success_total"]["finished_reason"] == "stop"


def test_lengths_fall_into_ones_twos_and_fives() -> None:
    bounds = Metrics().request_prompt.bounds
    assert bounds[:5] == (1, 2, 5, 10, 20) and bounds[-1] == 500_000


def test_prefix_and_counter_suffix() -> None:
    metrics = Metrics(prefix="vllm:", model="m")
    metrics.prompt_tokens.inc(7)
    metrics.success.inc(label="stop")
    text = metrics.render().decode()
    assert 'vllm:prompt_tokens_total{model_name="m"} 7.0' in text
    assert 'vllm:request_success_total{finished_reason="stop",model_name="m"} 1.0' in text
    assert "octavo:" not in text


def test_histograms_count_cumulatively() -> None:
    metrics = Metrics(model="m")
    for value in (0.0005, 0.001, 0.3, 1000.0):
        metrics.ttft.observe(value)
    lines = metrics.render().decode().splitlines()
    name = "octavo:time_to_first_token_seconds"
    assert f'{name}_bucket{{le="0.001",model_name="m"}} 2.0' in lines
    assert f'{name}_bucket{{le="0.5",model_name="m"}} 3.0' in lines
    assert f'{name}_bucket{{le="+Inf",model_name="m"}} 4.0' in lines
    assert f'{name}_count{{model_name="m"}} 4.0' in lines


def test_histogram_mean() -> None:
    histogram = Histogram("h", "", (1.0, 2.0))
    assert histogram.mean == 0.0
    histogram.observe(1.0)
    histogram.observe(4.0)
    assert histogram.mean == 2.5


def test_the_text_parses() -> None:
    metrics = Metrics(model='quote " and \\ and \n')
    metrics.cache_config.labels = {"block_size": "16"}
    assert len(families(metrics)) == len(metrics.declared())
