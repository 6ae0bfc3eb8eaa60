"""Tiny random models for tests: a Hugging Face directory written in milliseconds, and a dense float64 truth beside it.

    path = write_tiny(tmp_path, "llama", num_hidden_layers=2)
    logits = dense_logits(path, [5, 9, 200])    # float64 [3, vocab], nothing of Octavo inside

`VARIANTS` names the shapes worth covering: grouped heads, biases, llama3 rope, tied heads, sizes that are no multiple
of 32 or 16, bfloat16 and float16 files. Norms and biases carry noise: fresh ones are 0 or 1 and would hide a missing
term.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

VOCAB = 320
"""256 bytes, 8 special tokens, then merges and padding."""
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|tool|>", "<|image|>", "<|a|>", "<|b|>")
BOS_ID, EOS_ID = 257, 258
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": False,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-llama3": ("llama", {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 10000.0}}),
    "llama-llama3-old": ("llama", {"rope_scaling": LLAMA3_ROPE, "rope_theta": 5000.0}),
    "llama-odd": (
        "llama",
        {
            "hidden_size": 60,
            "intermediate_size": 100,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 20,
        },
    ),
    "llama-bf16": ("llama", {"dtype": "bfloat16"}),
    "llama-f16": ("llama", {"dtype": "float16", "num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", {"rms_norm_eps": 1e-6}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "qwen3_moe",
        {
            "num_experts": 8,
            "moe_intermediate_size": 32,
            "num_experts_per_tok": 3,
            "head_dim": 32,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-mixed": (
        "qwen3_moe",
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "mlp_only_layers": [0]},
    ),
    "phi3": ("phi3", {"pad_token_id": 0}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True, "num_attention_heads": 2, "num_key_value_heads": 1}),
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}
"""Of a sparse layer: where it is, and its experts' gate, up and down."""
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What Phi-3 stores as one tensor, one below the other."""


def tiny_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """A config.json of `family` (a key of _ARCHITECTURES) with Hugging Face keys; overrides win."""
    return {**_BASE, "model_type": family, "architectures": [_ARCHITECTURES[family]], "dtype": "float32", **overrides}


def tiny_weights(config: Mapping[str, Any], *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random tensors under the names of a Hugging Face checkpoint."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    out: dict[str, NDArray[np.float32]] = {}

    def linear(name: str, n: int, k: int, *, bias: bool = False) -> None:
        out[f"{name}.weight"] = (rng.standard_normal((n, k)) * 1.5 / np.sqrt(k)).astype(np.float32)
        if bias:
            out[f"{name}.bias"] = (rng.standard_normal(n) * 0.3).astype(np.float32)

    def norm(name: str, width: int = hidden) -> None:
        out[f"{name}.weight"] = (1 + 0.2 * rng.standard_normal(width)).astype(np.float32)

    def sparse(p: str) -> None:
        place, (gate, up, down) = EXPERT_NAMES[config["model_type"]]
        linear(f"{p}.{place}.gate", num_experts(config), hidden)
        width = expert_width(config)
        for e in range(num_experts(config)):
            linear(f"{p}.{place}.experts.{e}.{gate}", width, hidden)
            linear(f"{p}.{place}.experts.{e}.{up}", width, hidden)
            linear(f"{p}.{place}.experts.{e}.{down}", hidden, width)

    def join(p: str) -> None:
        for joined, parts in JOINED.items():
            place = f"{p}.self_attn" if joined == "qkv_proj" else f"{p}.mlp"
            rows = [out.pop(f"{place}.{part}.weight") for part in parts]
            out[f"{place}.{joined}.weight"] = np.concatenate(rows)

    bias = config["model_type"] == "qwen2" or bool(config.get("attention_bias"))
    out["model.embed_tokens.weight"] = rng.standard_normal((vocab, hidden)).astype(np.float32)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        norm(f"{p}.input_layernorm")
        linear(f"{p}.self_attn.q_proj", heads * head_dim, hidden, bias=bias)
        linear(f"{p}.self_attn.k_proj", kv_heads * head_dim, hidden, bias=bias)
        linear(f"{p}.self_attn.v_proj", kv_heads * head_dim, hidden, bias=bias)
        linear(f"{p}.self_attn.o_proj", hidden, heads * head_dim, bias=bool(config.get("attention_bias")))
        if config["model_type"] == "qwen3_moe":
            norm(f"{p}.self_attn.q_norm", head_dim)
            norm(f"{p}.self_attn.k_norm", head_dim)
        norm(f"{p}.post_attention_layernorm")
        if is_sparse(config, i):
            sparse(p)
            continue
        linear(f"{p}.mlp.gate_proj", inner, hidden, bias=bool(config.get("mlp_bias")))
        linear(f"{p}.mlp.up_proj", inner, hidden, bias=bool(config.get("mlp_bias")))
        linear(f"{p}.mlp.down_proj", hidden, inner, bias=bool(config.get("mlp_bias")))
        if config["model_type"] == "phi3":
            join(p)
    norm("model.norm")
    if not config.get("tie_word_embeddings"):
        linear("lm_head", vocab, hidden)
    return out


def num_experts(config: Mapping[str, Any]) -> int:
    return int(config.get("num_experts") or config.get("num_local_experts") or 0)


def expert_width(config: Mapping[str, Any]) -> int:
    return int(config.get("moe_intermediate_size") or config["intermediate_size"])


def is_sparse(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer is a mixture of experts."""
    return num_experts(config) > 0 and layer not in config.get("mlp_only_layers", ())


def write_tiny(
    directory: Path, family: str = "llama", *, seed: int = 0, tokenizer: bool = True, shards: int = 1, **overrides: Any
) -> Path:
    """Write config.json, safetensors, generation_config.json (and a byte-level tokenizer with a chat template).

    `family` is a family or a key of VARIANTS. Returns the directory.
    """
    family, base = VARIANTS.get(family, (family, {}))
    config = tiny_config(family, **{**base, **overrides})
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_ID], "bos_token_id": BOS_ID}))
    weights = tiny_weights(config, seed=seed)
    names = list(weights)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", weights, dtype=config["dtype"])
    else:
        index: dict[str, str] = {}
        for s in range(shards):
            file, part = f"model-{s + 1:05d}-of-{shards:05d}.safetensors", names[s::shards]
            write_safetensors(directory / file, {n: weights[n] for n in part}, dtype=config["dtype"])
            index |= dict.fromkeys(part, file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    if tokenizer:
        _write_tokenizer(directory)
    return directory


def write_safetensors(path: Path, weights: Mapping[str, NDArray[np.float32]], *, dtype: str = "float32") -> None:
    """The format by hand: u64 length, JSON header, data. dtype: "float32", "bfloat16" or "float16"."""
    code, kind = {
        "float32": ("F32", np.dtype(np.float32)),
        "bfloat16": ("BF16", np.dtype(ml_dtypes.bfloat16)),
        "float16": ("F16", np.dtype(np.float16)),
    }[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, value in weights.items():
        data = value.astype(kind).tobytes()
        header[name] = {"dtype": code, "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        blobs.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_composite(directory: Path, plain: Path, architecture: str, model_type: str, *, newer: bool) -> Path:
    """`plain`'s model inside one that sees images, in either spelling of tensor names: `newer` has `model.` first."""
    directory.mkdir(parents=True)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, value in read_tensors(plain).items():
        inner = name.removeprefix("model.")
        outer = f"model.language_model.{inner}" if inner != name else name
        weights[outer if newer else f"language_model.{name}"] = value
    before = "model." if newer else ""
    weights |= {
        f"{before}vision_tower.vision_model.embeddings.patch_embedding.weight": np.ones((8, 3, 2, 2), np.float32),
        f"{before}vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight": np.ones((16, 8), np.float32),
        f"{before}multi_modal_projector.mm_input_projection_weight": np.ones((8, 64), np.float32),
    }
    config = json.loads((plain / "config.json").read_text())
    ids = {key: config.pop(key) for key in ("bos_token_id", "eos_token_id") if key in config}
    vision = {"hidden_size": 8, "model_type": "siglip_vision_model", "num_hidden_layers": 1}
    whole = {"architectures": [architecture], "model_type": model_type, **ids, "text_config": config}
    (directory / "config.json").write_text(json.dumps({**whole, "vision_config": vision}))
    write_safetensors(directory / "model.safetensors", weights)
    return directory


def read_tensors(directory: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the directory's safetensors files, as float32."""
    kinds = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
    out: dict[str, NDArray[np.float32]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack_from("<Q", raw)
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                data = np.frombuffer(raw[8 + length + begin : 8 + length + end], kinds[entry["dtype"]])
                out[name] = data.reshape(entry["shape"]).astype(np.float32)
    return out


def stacked_experts(tensors: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """`p.experts.N.name` of all N as one `p.experts.name` [E, n, k]; other tensors as they are."""
    out: dict[str, Any] = {}
    for name, value in tensors.items():
        place, found, rest = name.partition(".experts.")
        if found:
            out.setdefault(f"{place}.experts.{rest.partition('.')[2]}", []).append(value)
        else:
            out[name] = value
    return {name: np.stack(value) if isinstance(value, list) else value for name, value in out.items()}


def dense_logits(directory: Path, ids: Sequence[int]) -> NDArray[np.float64]:
    """Logits [len(ids), vocab] of one sequence, in float64, without cache, paging or any line of Octavo."""
    config = json.loads((directory / "config.json").read_text())
    w = {name: value.astype(np.float64) for name, value in read_tensors(directory).items()}
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or hidden // heads
    for name in [name for name in w if name.split(".")[-2] in JOINED]:
        place, joined, _ = name.rsplit(".", 2)
        ends = [heads * d, (heads + kv_heads) * d] if joined == "qkv_proj" else 2
        for part, rows in zip(JOINED[joined], np.split(w.pop(name), ends), strict=True):
            w[f"{place}.{part}.weight"] = rows
    n = len(ids)
    cos, sin = _rope(config, d, n)
    future = np.triu(np.full((n, n), -np.inf), 1)

    def rms(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"])
        return np.asarray(x / scale * w[f"{name}.weight"])

    def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0))

    def head_norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return rms(x, name) if f"{name}.weight" in w else x

    def gated(x: NDArray[np.float64], gate: str, up: str, down: str) -> NDArray[np.float64]:
        g = linear(x, gate)
        return linear(g / (1 + np.exp(-g)) * linear(x, up), down)

    def sparse(x: NDArray[np.float64], p: str) -> NDArray[np.float64]:
        place, names = EXPERT_NAMES[config["model_type"]]
        scores = linear(x, f"{p}.{place}.gate")
        e = np.exp(scores - scores.max(-1, keepdims=True))
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : config["num_experts_per_tok"]]
        share = np.take_along_axis(e / e.sum(-1, keepdims=True), chosen, 1)
        if config["model_type"] == "mixtral" or config.get("norm_topk_prob"):
            share = share / share.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for t, j in np.ndindex(chosen.shape):
            expert = f"{p}.{place}.experts.{chosen[t, j]}"
            out[t] += share[t, j] * gated(x[t], *(f"{expert}.{name}" for name in names))
        return out

    def rotate(x: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][np.asarray(ids)]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        y = rms(x, f"{p}.input_layernorm")
        q = head_norm(linear(y, f"{p}.self_attn.q_proj").reshape(n, heads, d), f"{p}.self_attn.q_norm")
        k = head_norm(linear(y, f"{p}.self_attn.k_proj").reshape(n, kv_heads, d), f"{p}.self_attn.k_norm")
        q, k = (rotate(t.transpose(1, 0, 2)) for t in (q, k))
        v = linear(y, f"{p}.self_attn.v_proj").reshape(n, kv_heads, d).transpose(1, 0, 2)
        k, v = (np.repeat(t, heads // kv_heads, 0) for t in (k, v))
        s = q @ k.transpose(0, 2, 1) / np.sqrt(d) + future
        s = np.exp(s - s.max(-1, keepdims=True))
        o = (s / s.sum(-1, keepdims=True)) @ v
        x = x + linear(o.transpose(1, 0, 2).reshape(n, heads * d), f"{p}.self_attn.o_proj")
        y = rms(x, f"{p}.post_attention_layernorm")
        dense = (f"{p}.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
        x = x + (sparse(y, p) if is_sparse(config, i) else gated(y, *dense))
    head = "model.embed_tokens" if config.get("tie_word_embeddings") else "lm_head"
    return linear(rms(x, "model.norm"), head)


def _rope(config: Mapping[str, Any], d: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos and sin [n, d / 2]; llama3 slows the long wavelengths and blends between."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta", 10000.0)
    freq = 1.0 / theta ** (np.arange(0, d, 2) / d)
    if rope.get("rope_type") == "llama3":
        old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        turns = old * freq / (2 * np.pi)
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        freq = freq * (blend + (1 - blend) / rope["factor"])
    angle = np.arange(n)[:, None] * freq[None, :]
    return np.cos(angle), np.sin(angle)


def _write_tokenizer(directory: Path) -> None:
    """A byte-level BPE: ids 0-255 are the bytes (in the alphabet's order), then SPECIALS, then four merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)} | {s: 256 + i for i, s in enumerate(SPECIALS)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")]
    vocab |= {a + b: 264 + i for i, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
