"""What people write who come from another engine, and what it is called (or why it is not needed) here.

The command line and the Python API answer from the same tables: a keyword `max_seq_len` is the flag `--max-seq-len`.
"""

from __future__ import annotations

_MODEL = "the model is the first argument: octavo serve PATH"
_LEN = "here it is --max-model-len; by default the model's own length, or what fits in memory"
_SEQS = "here it is --max-num-seqs; the context is not divided among sequences, free KV blocks bound them together"
_CPU = "not needed: this build runs on the CPU"
_ALWAYS = "not needed: always on"
_NOT_YET = "not supported yet"
_KV = "here it is --kv-cache-memory-bytes, memory for KV blocks, not a share of a device"

FLAGS: dict[str, str] = {
    # llama.cpp
    "-m": _MODEL,
    "-hf": "a Hugging Face id is the first argument: octavo serve OWNER/NAME",
    "--hf-repo": "a Hugging Face id is the first argument: octavo serve OWNER/NAME",
    "-c": _LEN,
    "--ctx-size": _LEN,
    "-np": _SEQS,
    "--parallel": _SEQS,
    "-ngl": _CPU,
    "--n-gpu-layers": _CPU,
    "--gpu-layers": _CPU,
    "-t": "here it is --threads",
    "-tb": "here it is --threads; prompts and answers share one team",
    "--threads-batch": "here it is --threads; prompts and answers share one team",
    "-b": "here it is --max-num-batched-tokens",
    "-ub": "here it is --max-num-batched-tokens",
    "--batch-size": "here it is --max-num-batched-tokens",
    "--ubatch-size": "here it is --max-num-batched-tokens",
    "-cb": _ALWAYS,
    "--cont-batching": _ALWAYS,
    "-fa": _ALWAYS,
    "--flash-attn": _ALWAYS,
    "-ctk": "here it is --kv-cache-dtype",
    "-ctv": "here it is --kv-cache-dtype",
    "--cache-type-k": "here it is --kv-cache-dtype",
    "--cache-type-v": "here it is --kv-cache-dtype",
    "-a": "here it is --served-model-name",
    "--alias": "here it is --served-model-name",
    "-n": "here it is --max-tokens, an option of chat and run and a field of each request",
    "--n-predict": "here it is --max-tokens, an option of chat and run and a field of each request",
    "--temp": "here it is --temperature, an option of chat and run and a field of each request",
    "-p": "the prompt follows the model: octavo run MODEL PROMPT",
    "--prompt": "the prompt follows the model: octavo run MODEL PROMPT",
    "-sys": "here it is --system (octavo chat, octavo run)",
    "--mlock": "not needed: weights are repacked into memory of their own",
    "--no-mmap": "not needed: weights are repacked into memory of their own",
    "--jinja": "not needed: the model's own template is used; --chat-template takes a file",
    "--chat-template-file": "here it is --chat-template",
    "--embedding": _NOT_YET,
    "--embeddings": _NOT_YET,
    "--lora": _NOT_YET,
    "-md": _NOT_YET,
    "--model-draft": _NOT_YET,
    "--metrics": "not needed: /metrics is always there",
    # Ollama
    "--num-ctx": _LEN,
    "--num-parallel": _SEQS,
    "--num-gpu": _CPU,
    "--num-thread": "here it is --threads",
    "--num-predict": "here it is --max-tokens, an option of chat and run and a field of each request",
    "--keepalive": "not needed: a served model stays loaded",
    "--verbose": "not needed: chat and run print tokens per second at the end",
    # vLLM
    "--model": _MODEL,
    "--tokenizer": "not supported: the tokenizer is the model's own",
    "--trust-remote-code": "not supported: code of a model is never run",
    "--gpu-memory-utilization": _KV,
    "--swap-space": "not needed: a preempted sequence is computed again",
    "--enforce-eager": "not needed: nothing is compiled at start",
    "--device": _CPU,
    "--load-format": "not needed: GGUF and safetensors are recognised",
    "--enable-chunked-prefill": _ALWAYS,
    "--tensor-parallel-size": _NOT_YET,
    "-tp": _NOT_YET,
    "--pipeline-parallel-size": _NOT_YET,
    "--data-parallel-size": _NOT_YET,
    "--enable-lora": _NOT_YET,
    "--lora-modules": _NOT_YET,
    "--speculative-config": _NOT_YET,
    "--enable-auto-tool-choice": _NOT_YET,
    "--tool-call-parser": _NOT_YET,
    "--reasoning-parser": _NOT_YET,
    "--guided-decoding-backend": _NOT_YET,
    "--disable-log-requests": "not needed: prompts and answers are never logged",
    "--no-enable-log-requests": "not needed: prompts and answers are never logged",
    "--num-gpu-blocks-override": "here it is --num-kv-blocks",
    "--cpu-offload-gb": _CPU,
    "--max-seq-len": _LEN,
    # vllm bench
    "--base-url": "here it is --url",
    "--backend": "not needed: --endpoint says which API of an OpenAI-compatible server is asked",
    "--save-result": "here it is --result-filename FILE",
    "--output-json": "here it is --result-filename FILE",
    "--max-num-partial-prefills": "not needed: --long-prefill-token-threshold bounds each prompt",
}

_FP8 = "8-bit floats are not supported; int8 takes as many bytes"

_KNOWN = "not needed: what a quantised model is stored in is recognised"
_HALF = "the nearest is bfloat16"

VALUES: dict[str, dict[str, str]] = {
    "--dtype": {
        "float16": _HALF,
        "half": _HALF,
        "fp16": _HALF,
        "f16": _HALF,
        "bf16": "here it is bfloat16",
        "float": "here it is float32",
        "fp32": "here it is float32",
        "f32": "here it is float32",
    },
    "--quantization": {
        "awq": _KNOWN,
        "gptq": _KNOWN,
        "fp8": _KNOWN,
        "gguf": _KNOWN,
    },
    "--kv-cache-dtype": {
        # vLLM
        "fp8": _FP8,
        "fp8_e4m3": _FP8,
        "fp8_e5m2": _FP8,
        "fp8_inc": _FP8,
        "bf16": "here it is bfloat16",
        # llama.cpp
        "q8_0": "the nearest is int8",
        "f16": "the nearest is bfloat16",
        "f32": "here it is float32",
    },
}
"""Values of a flag we have, as others call them."""


def value_advice(flag: str, got: object) -> str:
    """The end of a refusal of `got`: " (what it is here)", where others have it; else nothing."""
    advice = VALUES.get(flag, {}).get(got) if isinstance(got, str) else None
    return f" ({advice})" if advice else ""


def near(word: str, known: list[str]) -> str | None:
    """The likeliest of `known`, None if nothing is alike."""
    import difflib

    found = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    return found[0] if found else None
