"""Names of metrics that tests of their declaration and of their values share."""

from __future__ import annotations

FAMILIES = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits",
    "num_preemptions", "prompt_tokens", "generation_tokens", "time_to_first_token_seconds",
    "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "iteration_tokens_total", "request_success", "lora_requests_info", "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "admission_rejections", "cache_config_info",
    "startup_seconds", "request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
    "request_params_max_tokens", "request_params_n",
}  # fmt: skip
"""The names that dashboards know."""

GRAFANA = {
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count",
    "prompt_tokens_total", "generation_tokens_total", "inter_token_latency_seconds_bucket",
    "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count", "num_requests_running",
    "num_requests_waiting", "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count", "kv_cache_usage_perc", "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket", "request_success_total", "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum",
}  # fmt: skip
"""Samples that the expressions of vLLM's board ask for, without `vllm:`, each by its label model_name (and
request_success_total by finished_reason). Source: examples/observability/prometheus_grafana/grafana.json of
vllm-project/vllm at commit 4b5c627c23e6690b8987100d1cbf78e34ac14bf9."""
