"""Every metric, declared once.

Values are plain numbers that only the event loop touches, so an observation costs a tenth of a microsecond and needs no
lock; prometheus-client formats them when somebody scrapes, and gives counters the suffix `_total`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Kind = Literal["counter", "gauge"]

PREFIX = "octavo:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
_TOKEN_GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_REQUEST = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_ANSWERS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


class Value:
    """A counter or a gauge, with at most one label."""

    __slots__ = ("name", "help", "kind", "label", "value", "by_label")

    def __init__(self, name: str, help: str, kind: Kind, *, label: str | None = None) -> None:
        self.name, self.help, self.kind, self.label = name, help, kind, label
        self.value = 0.0
        self.by_label: dict[str, float] = {}

    def inc(self, by: float = 1.0, *, label: str | None = None) -> None:
        """Add; a counter never goes down."""
        assert self.kind == "gauge" or by >= 0
        if label is None:
            self.value += by
        else:
            self.by_label[label] = self.by_label.get(label, 0.0) + by

    def set(self, value: float, *, label: str | None = None) -> None:
        """Take a snapshot's value (counters that the engine keeps are copied, not re-counted)."""
        if label is None:
            self.value = value
        else:
            self.by_label[label] = value


class Histogram:
    """Counts by upper bound (the last is +Inf), and the sum."""

    __slots__ = ("name", "help", "bounds", "counts", "sum")

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name, self.help, self.bounds = name, help, tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def mean(self) -> float:
        """0 before the first observation."""
        count = sum(self.counts)
        return self.sum / count if count else 0.0


class Info:
    """A gauge that is always 1 and whose labels are the message."""

    __slots__ = ("name", "help", "labels")

    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self.labels: dict[str, str] = {}


class Metrics:
    """All of them. `prefix` replaces `octavo:`: with `vllm:` every panel of vLLM's own Grafana board has data.

    What is said of a request counts it once, whatever its n; what is said of an answer counts each of the n.
    """

    def __init__(self, *, prefix: str = PREFIX, model: str = "") -> None:
        self.prefix, self.model = prefix, model
        gauge: Kind = "gauge"
        counter: Kind = "counter"
        self.running = Value("num_requests_running", "Sequences in the running batch.", gauge)
        self.waiting = Value("num_requests_waiting", "Sequences waiting for their first step.", gauge)
        self.kv_usage = Value("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", gauge)
        self.kv_waste = Value("kv_cache_waste_perc", "Share of held KV slots without a token over time, 0 to 1.", gauge)
        self.group_blocks = Value("kv_group_blocks_used", "KV blocks held, by KV group.", gauge, label="group")
        self.group_waste = Value("kv_group_waste_perc", "As kv_cache_waste_perc, by KV group.", gauge, label="group")
        self.blocks_cached = Value("kv_blocks_cached", "KV blocks that a prompt can hit, held or not.", gauge)
        self.blocks_dropped = Value("kv_blocks_dropped", "KV blocks given back from behind a window.", counter)
        self.prefix_queries = Value("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counter)
        self.prefix_hits = Value("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counter)
        self.preemptions = Value("num_preemptions", "Sequences preempted.", counter)
        self.prompt_tokens = Value("prompt_tokens", "Prompt tokens of requests that gave a first token.", counter)
        self.generation_tokens = Value("generation_tokens", "Tokens generated.", counter)
        self.success = Value(
            "request_success", "Answers ended, each of a request's n, by reason.", counter, label="finished_reason"
        )
        self.rejections = Value("admission_rejections", "Requests refused, by reason.", counter, label="reason")
        self.drafts = Value("spec_decode_num_drafts", "Times tokens were drafted for a sequence.", counter)
        self.draft_tokens = Value("spec_decode_num_draft_tokens", "Tokens drafted.", counter)
        self.accepted_tokens = Value("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", counter)
        self.step_seconds = Value("step_seconds", "Time of all steps.", counter)
        self.step_expected = Value("step_expected_seconds", "Time that was expected when they were planned.", counter)
        self.step_missed = Value("step_missed_seconds", "Sum over the steps of |taken - expected|.", counter)
        self.steps = Value("steps", "Steps planned.", counter)
        self.steps_cut = Value("steps_cut", "Steps whose prompts were cut to keep the target of time.", counter)
        self.steps_failed = Value(
            "steps_failed", "Steps that ended in an error; their requests are tried again.", counter
        )
        self.recomputed = Value(
            "recomputed_tokens", "Positions computed again after a preemption, or lost in a failed step.", counter
        )
        self.clamped = Value("requests_clamped", "Requests whose max_tokens was cut to what can be held.", counter)
        self.target_itl = Value("target_itl_seconds", "--target-itl-ms as resolved; 0: off.", gauge)
        self.startup = Value("startup_seconds", "Start-up time, by phase.", gauge, label="phase")
        self.ttft = Histogram("time_to_first_token_seconds", "Intake to first token.", _LATENCY)
        self.itl = Histogram("inter_token_latency_seconds", "Gap between an answer's consecutive tokens.", _TOKEN_GAP)
        self.tpot = Histogram("request_time_per_output_token_seconds", "Mean gap of an ended answer.", _TOKEN_GAP)
        self.e2e = Histogram("e2e_request_latency_seconds", "Intake to last token.", _REQUEST)
        self.queue_time = Histogram("request_queue_time_seconds", "Intake to first being scheduled.", _REQUEST)
        self.prefill_time = Histogram("request_prefill_time_seconds", "First scheduled to first token.", _REQUEST)
        self.decode_time = Histogram("request_decode_time_seconds", "First token to last token.", _REQUEST)
        self.request_prompt = Histogram("request_prompt_tokens", "Prompt tokens of an ended request.", _TOKENS)
        self.request_answer = Histogram("request_generation_tokens", "Tokens of an ended answer.", _TOKENS)
        self.request_longest = Histogram(
            "request_max_num_generation_tokens", "Tokens of the longest of an ended request's n answers.", _TOKENS
        )
        self.request_max_tokens = Histogram(
            "request_params_max_tokens", "max_tokens of an ended request, cut to what its length leaves.", _TOKENS
        )
        self.request_n = Histogram("request_params_n", "n of an ended request.", _ANSWERS)
        self.step_tokens = Histogram("iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS)
        self.lora = Info("lora_requests_info", "Adapters in use (none yet).")
        self.cache_config = Info("cache_config_info", "How the KV cache is configured.")

    def declared(self) -> list[Value | Histogram | Info]:
        """Each metric once, in declaration order."""
        return [m for m in vars(self).values() if isinstance(m, Value | Histogram | Info)]

    def render(self) -> bytes:
        """The Prometheus text format, for `GET /metrics` (content type: CONTENT_TYPE)."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        metrics = self

        class Snapshot(Collector):
            def collect(self) -> Iterable[Metric]:
                return [metrics._family(m) for m in metrics.declared()]

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Snapshot())
        return generate_latest(registry)

    def _family(self, metric: Value | Histogram | Info) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        name = self.prefix + metric.name
        base_names, base = ["model_name"], [self.model]
        if isinstance(metric, Info):
            labels = metric.labels
            family: Metric = GaugeMetricFamily(name, metric.help, labels=base_names + list(labels))
            assert isinstance(family, GaugeMetricFamily)
            if labels:
                family.add_metric(base + list(labels.values()), 1.0)
            return family
        if isinstance(metric, Histogram):
            total, buckets = 0, []
            for bound, count in zip((*map(str, metric.bounds), "+Inf"), metric.counts, strict=True):
                total += count
                buckets.append((bound, total))
            histogram = HistogramMetricFamily(name, metric.help, labels=base_names)
            histogram.add_metric(base, buckets, metric.sum)
            return histogram
        make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        value = make(name, metric.help, labels=base_names + ([metric.label] if metric.label else []))
        if metric.label is None:
            value.add_metric(base, metric.value)
        for label, number in metric.by_label.items():
            value.add_metric([*base, label], number)
        return value
