"""A Hugging Face model directory -> a Checkpoint. Code that a repository brings (`auto_map`) is never looked at."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from octavo.errors import FileFormatError, ModelError, every
from octavo.weights.composite import COMPOSITES, layout
from octavo.weights.experts import split_experts
from octavo.weights.family_defaults import COMMON, DEFAULTS, NULL, ROPE_TYPES, UNREAD
from octavo.weights.front import declared_eos, directory_templates, directory_vocabulary
from octavo.weights.safetensors import SafeTensor, SafetensorsFile
from octavo.weights.tensors import Checkpoint, Known, Tensor
from octavo.weights.tied import HEAD, own_head

MAX_JSON = 64_000_000
INDEX = "model.safetensors.index.json"
FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
IGNORED = ("rotary_emb.inv_freq", "attn.masked_bias")
"""Buffers some exporters left in: constants, not weights."""
Size = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]


def open_directory(path: Path, *, known: Known | None = None) -> Checkpoint:
    """Opens a directory with config.json and safetensors; reads JSON files and headers, and a head stored beside the
    embedding that it is said to be. Raises ModelError, FileFormatError; what `known` raises comes first."""
    whole = _json(path / "config.json")
    within = layout(whole)
    with _named(path / "config.json"):
        raw = within.config(whole)
        if known is not None:
            known(raw, COMPOSITES)
    files = [SafetensorsFile(file) for file in _weight_files(path)]
    found, left_out = within.kept(_found(path, files))
    tensors, notes = _tensors(path, found, raw.get("quantization_config"))
    with _named(path):
        tensors = within.renamed(tensors)
    raw, unread = _read_by_family(within.with_head(whole, raw, tensors))
    notes += unread
    generation = _json(path / "generation_config.json", optional=True)
    settings = _json(path / "tokenizer_config.json", optional=True)
    config = _config(path, raw, generation, tensors)
    if config["tie_word_embeddings"] and own_head(tensors):
        config["tie_word_embeddings"] = False
        notes += (f"{HEAD} differs from the embedding: it is the head, though config.json says they are tied",)
    named = declared_eos(path, settings)
    if named is not None and named not in config["eos_token_id"]:
        config["eos_token_id"].append(named)
    return Checkpoint(
        path=path,
        config=config,
        tensors=tensors,
        tokenizer_spec=directory_vocabulary(path, settings, config),
        chat_templates=directory_templates(path, settings),
        generation_config=generation,
        content_id=_content_id(path, files),
        notes=(*left_out, *notes),
    )


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Refusals begin with the file."""
    try:
        yield
    except ModelError as error:
        raise type(error)(f"{file}: {error}") from None


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


def _found(path: Path, files: Iterable[SafetensorsFile]) -> dict[str, SafeTensor]:
    """Every weight of the files."""
    found: dict[str, SafeTensor] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in found:
                raise FileFormatError(f"{file.path}: tensor {name}: got it in two shards, allowed: one")
            if not name.endswith(IGNORED):
                found[name] = tensor
    _all_of_the_index(path, found)
    return found


def _tensors(
    path: Path, found: dict[str, SafeTensor], quantization: object
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors in one vocabulary, and lines about those that a quantisation method stored."""
    made: dict[str, Tensor] = {}
    notes: tuple[str, ...] = ()
    if quantization:
        from octavo.weights.quantized import split  # needs NumPy

        made, found, notes = split(path, quantization, found)
    unsupported = Counter(tensor.dtype for tensor in found.values() if tensor.dtype not in FLOATS)
    if unsupported:
        got = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in sorted(unsupported.items()))
        raise ModelError(f"{path}: tensor type {got} not supported here: allowed {', '.join(FLOATS)}")
    plain = {name: Tensor(name, FLOATS[t.dtype], t.shape, _Reader(t)) for name, t in found.items()}
    return split_experts({**plain, **made}, path), notes


def _all_of_the_index(path: Path, found: Mapping[str, object]) -> None:
    if (path / INDEX).is_file():
        missing = [
            name for name in _json(path / INDEX)["weight_map"] if name not in found and not name.endswith(IGNORED)
        ]
        if missing:
            raise ModelError(f"{path}: {len(missing)} tensors are in the index and in no shard: {every(missing)}")


class _Reader:
    __slots__ = ("tensor",)

    def __init__(self, tensor: SafeTensor) -> None:
        self.tensor = tensor

    def __call__(self) -> memoryview:
        return self.tensor.data


class _Config(msgspec.Struct, kw_only=True):
    """The keys of config.json that are read here, with their types."""

    model_type: str
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: str
    rms_norm_eps: Positive
    rope_theta: Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: Positive | None = None
    tie_word_embeddings: bool
    sliding_window: Size | None = None
    use_sliding_window: bool
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    quantization_config: dict[str, Any] | None = None


class _Generation(msgspec.Struct):
    """The keys of generation_config.json that are read here; the rest is handed on as it is."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


_T = TypeVar("_T")


def _convert(path: Path, raw: Mapping[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ModelError(f"{path}: {error}") from None


def _read_by_family(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Without the keys that mean nothing to its family, and a line for each that says something."""
    unread = [key for key in UNREAD.get(str(raw.get("model_type")), ()) if raw.get(key) is not None]
    notes = tuple(f"config.json: {key} not used: {raw['model_type']} models have no such thing" for key in unread)
    return {key: value for key, value in raw.items() if key not in unread}, notes


def _config(
    path: Path, raw: Mapping[str, Any], generation: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """config.json with what it leaves to defaults filled in (see Checkpoint)."""
    file = path / "config.json"
    family = str(raw.get("model_type"))
    present = {key: value for key, value in raw.items() if value is not None or key in NULL}
    filled = {**COMMON, **DEFAULTS.get(family, {}), **present}
    read = _convert(file, filled, _Config)
    said = _convert(path / "generation_config.json", generation, _Generation)
    rope = read.rope_scaling or read.rope_parameters or {}
    heads = read.num_attention_heads
    eos = read.eos_token_id if said.eos_token_id is None else said.eos_token_id
    config = dict(filled)
    config.update(msgspec.structs.asdict(read))
    config.update(
        head_dim=read.head_dim or max(read.hidden_size // heads, 1),
        num_key_value_heads=read.num_key_value_heads or heads,
        rope_theta=_positive(file, rope, "rope_theta", read.rope_theta or 10_000.0),
        rope_scaling=_scaling(rope, ROPE_TYPES.get(family, {})),
        attention_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        mlp_bias="model.layers.0.mlp.up_proj.bias" in tensors,
        sliding_window=read.sliding_window if read.use_sliding_window else None,
        bos_token_id=read.bos_token_id if said.bos_token_id is None else said.bos_token_id,
        eos_token_id=[eos] if isinstance(eos, int) else list(eos or ()),
    )
    partial = _positive(file, rope, "partial_rotary_factor", read.partial_rotary_factor or 1.0)
    config["partial_rotary_factor"] = partial if partial != 1.0 else None
    if not any(isinstance(value, Mapping) for value in (read.rope_parameters or {}).values()):
        config["rope_parameters"] = None  # one set, which the other keys hold by now
    for key in ("partial_rotary_factor", "rope_parameters"):
        if config[key] is None:
            del config[key]
    del config["quantization_config"]  # the tensors are what it says by now
    return config


def _positive(file: Path, rope: Mapping[str, Any], key: str, default: float) -> float:
    value = rope.get(key, default)
    if type(value) not in (int, float) or not 0 < value < 1e12:
        raise ModelError(f"{file}: rope_parameters.{key}: got {value!r}, allowed: a number above 0")
    return float(value)


def _scaling(scaling: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any] | None:
    """rope_scaling with `rope_type` (older files say `type`), renamed where `names` has it; None for a plain rope."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kind = names.get(kind, kind) if isinstance(kind, str) else kind
    rest = {key: value for key, value in scaling.items() if key not in ("type", "rope_theta", "partial_rotary_factor")}
    return None if kind == "default" else {**rest, "rope_type": kind}


def _content_id(path: Path, files: Iterable[SafetensorsFile]) -> bytes:
    digest = hashlib.blake2b((path / "config.json").read_bytes(), digest_size=32)
    for file in files:
        digest.update(struct.pack("<Q", file.size))
        digest.update(file.header)
        for tensor in file.tensors.values():
            digest.update(tensor.data[:4096])
    return digest.digest()
