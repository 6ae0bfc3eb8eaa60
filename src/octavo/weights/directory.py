"""A Hugging Face model directory -> a Checkpoint. Code that a repository brings (`auto_map`) is never looked at."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import FileFormatError, ModelError
from octavo.weights.checkpoint import Checkpoint, Tensor
from octavo.weights.safetensors import SafeTensor, SafetensorsFile

MAX_JSON = 64_000_000
MAX_TOKENIZER = 256_000_000
INDEX = "model.safetensors.index.json"
FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
IGNORED = ("rotary_emb.inv_freq", "attn.masked_bias")
"""Buffers some exporters left in: constants, not weights."""
DEFAULTS = {"llama": {"max_position_embeddings": 2048}, "qwen2": {"max_position_embeddings": 32768}}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def open_directory(path: Path) -> Checkpoint:
    """Opens a directory with config.json and safetensors; reads JSON files and headers only. Raises ModelError,
    FileFormatError."""
    raw = _json(path / "config.json")
    files = [SafetensorsFile(file) for file in _weight_files(path)]
    tensors = _tensors(path, files)
    generation = _json(path / "generation_config.json", optional=True)
    settings = _json(path / "tokenizer_config.json", optional=True)
    config = _config(path, raw, generation, tensors)
    return Checkpoint(
        path=path,
        config=config,
        tensors=tensors,
        tokenizer_spec=_tokenizer_spec(path, settings, config),
        chat_template=_chat_template(path, settings),
        generation_config=generation,
        content_id=_content_id(path, files),
    )


def _bytes(path: Path, *, limit: int = MAX_JSON) -> bytes:
    size = path.stat().st_size
    if size > limit:
        raise FileFormatError(f"{path}: got {size} bytes, allowed: at most {limit}")
    return path.read_bytes()


def _json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_bytes(path), type=dict[str, Any])
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path}: {error}") from None


def _weight_files(path: Path) -> list[Path]:
    index = path / INDEX
    if index.is_file():
        shards = _json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise FileFormatError(f"{index}: weight_map: got {type(shards).__name__}, allowed: names to file names")
        names = sorted(set(shards.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise FileFormatError(f"{index}: weight_map: got {name!r}, allowed: plain names of safetensors files")
            if not (path / name).is_file():
                raise ModelError(f"{path}: shard {name} is missing (the index lists {len(names)} files)")
        return [path / name for name in names]
    single = path / "model.safetensors"
    files = [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        pickled = [file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in sorted(path.glob(pattern))]
        if pickled:
            got = f"{pickled[0]}: pickled weights can run code and are not read"
            raise ModelError(f"{path}: {got}; convert the model to safetensors")
        raise ModelError(f"{path}: no safetensors file in it")
    return files


def _tensors(path: Path, files: Iterable[SafetensorsFile]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    unsupported: Counter[str] = Counter()
    for file in files:
        for name, tensor in file.tensors.items():
            if name.endswith(IGNORED):
                continue
            if name in tensors:
                raise FileFormatError(f"{file.path}: tensor {name}: got it in two shards, allowed: one")
            if tensor.dtype in FLOATS:
                tensors[name] = Tensor(name, FLOATS[tensor.dtype], tensor.shape, _Reader(tensor))
            else:
                unsupported[tensor.dtype] += 1
    if unsupported:
        got = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in sorted(unsupported.items()))
        raise ModelError(f"{path}: tensor type {got} not supported yet: allowed {', '.join(FLOATS)}")
    if (path / INDEX).is_file():
        missing = [
            name for name in _json(path / INDEX)["weight_map"] if name not in tensors and not name.endswith(IGNORED)
        ]
        if missing:
            raise ModelError(f"{path}: tensor {missing[0]} is in the index and in no shard ({len(missing)} such)")
    return tensors


class _Reader:
    __slots__ = ("tensor",)

    def __init__(self, tensor: SafeTensor) -> None:
        self.tensor = tensor

    def __call__(self) -> memoryview:
        return self.tensor.data


def _config(
    path: Path, raw: Mapping[str, Any], generation: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """config.json with what it leaves to defaults filled in (see Checkpoint)."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{path}/config.json: model_type: got {model_type!r}, allowed: a name such as llama")
    if raw.get("quantization_config"):
        method = dict(raw["quantization_config"]).get("quant_method", "unknown")
        raise ModelError(f"{path}/config.json: quantization_config: got {method!r}, allowed: none (not supported yet)")
    for key in SIZES:
        if not _is_size(raw.get(key)):
            raise ModelError(f"{path}/config.json: {key}: got {raw.get(key)!r}, allowed: a whole number above 0")
    heads = raw["num_attention_heads"]
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or rope or None
    config = {
        "head_dim": raw["hidden_size"] // heads,
        "num_key_value_heads": heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        **DEFAULTS.get(model_type, {}),
        **{key: value for key, value in raw.items() if value is not None},
    }
    for key in ("head_dim", "num_key_value_heads", "max_position_embeddings"):
        if not _is_size(config[key]):
            raise ModelError(f"{path}/config.json: {key}: got {config[key]!r}, allowed: a whole number above 0")
    config["rope_theta"] = float(raw.get("rope_theta") or rope.get("rope_theta") or 10_000.0)
    config["rope_scaling"] = _scaling(scaling)
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    config["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in tensors
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    config["sliding_window"] = window
    config["bos_token_id"] = _first(generation.get("bos_token_id"), raw.get("bos_token_id"))
    eos = _first(generation.get("eos_token_id"), raw.get("eos_token_id"))
    config["eos_token_id"] = [eos] if isinstance(eos, int) else list(eos or ())
    return config


def _scaling(scaling: Any) -> dict[str, Any] | None:
    """rope_scaling with `rope_type` (older files say `type`); None where it changes nothing."""
    if not isinstance(scaling, dict):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    rest = {key: value for key, value in scaling.items() if key not in ("type", "rope_theta")}
    return None if kind == "default" else {**rest, "rope_type": kind}


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _tokenizer_spec(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    file = path / "tokenizer.json"
    if not file.is_file():
        return {"format": "none", "reason": f"{path}: no tokenizer.json in it"}
    return {
        "format": "json",
        "tokenizer_json": _bytes(file, limit=MAX_TOKENIZER),
        "tokenizer_config": dict(settings),
        "config": {key: config[key] for key in ("bos_token_id", "eos_token_id")},
    }


def _chat_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    for name in ("chat_template.jinja", "chat_template.json"):
        file = path / name
        if file.is_file() and name.endswith(".jinja"):
            try:
                return _bytes(file).decode()
            except UnicodeDecodeError:
                raise FileFormatError(f"{file}: got bytes that are not UTF-8, allowed: UTF-8") from None
        if file.is_file():
            return _text(_json(file).get("chat_template"))
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return _text(template)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _content_id(path: Path, files: Iterable[SafetensorsFile]) -> bytes:
    digest = hashlib.blake2b((path / "config.json").read_bytes(), digest_size=32)
    for file in files:
        digest.update(struct.pack("<Q", file.size))
        digest.update(file.header)
        for tensor in file.tensors.values():
            digest.update(tensor.data[:4096])
    return digest.digest()
