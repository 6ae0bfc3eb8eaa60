"""Every block type of GGUF from the file to the logits, on tiny models whose blocks are random.

Truth is the `gguf` package: its numbers of the same bytes, computed by tests.tiny in float64 without a line of Octavo.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.program.buffers import BufferStore
from octavo.program.interpret import ReferenceExecutable, load_weights
from octavo.quant.table import GGUF_BLOCKS
from octavo.weights.checkpoint import open_checkpoint
from tests.models.harness import Sequence1, all_logits, errors, lowered, native_backend
from tests.ops.linear_cases import HALVES, unpacked
from tests.tiny import dense_logits, tiny_config, tiny_weights, write_safetensors

pytest.importorskip("octavo._native", reason="the native module is not built")

F32 = NDArray[np.float32]
WIDTH = 256
"""A K-quant's block is one row of it."""
MIXES: dict[str, dict[str, str]] = {
    **{kind: {"": kind} for kind in GGUF_BLOCKS},
    "experts q4_k": {"": "q4_k", "w2": "q6_k", "embed": "q8_0"},
    "q4_k_m": {"": "q4_k", "v_proj": "q6_k", "down_proj": "q6_k", "lm_head": "q6_k", "o_proj": "q5_k"},
    "iq4_xs mixed": {"": "iq4_xs", "v_proj": "q5_0", "down_proj": "iq4_nl", "embed": "q6_k"},
}
"""Name -> what part of a tensor's name is stored as; "" for the rest."""
FLOAT_ERROR = 1e-4
"""Of the logits' spread, root of the mean square of the worst row: float32 against float64 (3e-5 measured)."""
NATIVE_ERROR = 2e-6
"""The same as served (K and V in float32), natively against the reference executor on the same cache (9e-7 measured),
for SHARE of the rows. Not for all: the orders of summation differ, so a number that is nearly between two 8-bit codes
may get the other one, or a token another expert, which costs that row up to TIE (3.5e-2 measured)."""
SHARE = 0.85
"""42 of 45 rows measured, at worst."""
TIE = 5e-2
SERVED_ERROR = 6e-2
"""The same of the middle row, as served against float64: activations in 8 bits (5e-2 measured)."""
IDS = np.random.default_rng(7).integers(3, 300, 45).tolist()
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def random_blocks(kind: str, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random bytes [n, bytes of a row] whose scales make numbers of mean 0 and a deviation of about 1.5 / sqrt(k)."""
    size, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    raw = rng.integers(0, 256, (n * k // size, nbytes), dtype=np.uint8)
    scales = {at: rng.uniform(0.5, 1.5, len(raw)) for at in HALVES.get(kind, ())}

    def write(factors: list[float]) -> F32:
        for (at, values), factor in zip(scales.items(), factors, strict=False):
            raw[:, at : at + 2] = (values * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)
        return numbers_of(kind, raw.reshape(n, -1))

    if kind == "mxfp4":  # its scale is a power of two
        raw[:, 0] = rng.integers(121, 124, len(raw))
    elif len(scales) == 2:  # the minima take what the codes' mean is
        codes = write([1.0, 0.0]).mean()
        factor = -codes / (write([1.0, 1.0]).mean() - codes)
        scale = 1.5 / np.sqrt(k) / write([1.0, factor]).std()
        write([scale, scale * factor])
    else:
        write([1.5 / np.sqrt(k) / write([1.0]).std()])
    return raw.reshape(n, -1)


def numbers_of(kind: str, raw: NDArray[np.uint8]) -> F32:
    """What the package reads."""
    return np.asarray(gguf.dequantize(raw, gguf.GGMLQuantizationType[kind.upper()]), np.float32)


def halves(value: NDArray[Any], heads: int) -> NDArray[Any]:
    """A projection's rows from the order of llama.cpp (rotary pairs are neighbours) to Hugging Face's."""
    pairs = value.reshape(heads, value.shape[0] // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(value.shape)


def write_model(directory: Path, mix: str) -> tuple[Path, Path]:
    """A GGUF file of random blocks, and the float32 directory of the numbers that the package reads in it."""
    family = "mixtral" if "experts" in mix else "llama"
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if family == "mixtral" else {}
    config = tiny_config(family, **SIZES, **more)
    rng = np.random.default_rng(list(MIXES).index(mix))
    path, dense = directory / "model.gguf", directory / "dense"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_eos_token_id(2)
    if more:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    weights = tiny_weights(config)
    stacked: dict[str, list[NDArray[np.uint8]]] = {}
    for name, value in weights.items():
        if value.ndim == 1 or name.endswith(".gate.weight"):  # llama.cpp keeps routers in float32
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), value)
            continue
        kind = next(k for part, k in reversed(MIXES[mix].items()) if part in name)
        raw = random_blocks(kind, *value.shape, rng)
        weights[name] = numbers_of(kind, raw)
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if projection in name:
                weights[name] = halves(weights[name], config[heads])
        place, found, rest = name.partition(".experts.")
        if found:
            name = f"{place}.experts.{rest.partition('.')[2]}"
            stacked.setdefault(name, []).append(raw)
            if len(stacked[name]) < 4:
                continue
            raw = np.stack(stacked[name])
        stored = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(stored, raw, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    dense.mkdir()
    (dense / "config.json").write_text(json.dumps(config))
    write_safetensors(dense / "model.safetensors", weights)
    return path, dense


@pytest.fixture(scope="module", params=MIXES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_model(tmp_path_factory.mktemp("gguf"), request.param)


def native_run(spec: Any, checkpoint: Any, chunk: int = 32) -> tuple[F32, F32]:
    """Logits [len(IDS), vocab], computed in chunks, and the cache behind them."""
    blocks = spec.limits.max_blocks + 3
    backend = native_backend(spec, checkpoint, num_blocks=blocks)
    store = BufferStore(backend._activations.view(0, spec.arena_bytes), spec.buffers)
    sequence = Sequence1(backend, num_blocks=blocks)
    out = []
    for first in range(0, len(IDS), chunk):
        piece = IDS[first : first + chunk]
        sequence.compute(piece, rows=len(piece), chunk=len(piece))
        out.append(store.numbers(spec.logits, len(piece)).copy())
    cache = cache_of(backend, spec)
    backend.close()
    return np.concatenate(out), cache


def rms(off: NDArray[Any]) -> Any:
    """Of each row."""
    return np.sqrt((off**2).mean(axis=1))


def test_float32_logits(made: tuple[Path, Path]) -> None:
    path, dense = made
    want = dense_logits(dense, IDS)
    checkpoint = open_checkpoint(path)
    spec = lowered(checkpoint, backend="native", dtype="float32")
    assert rms(native_run(spec, checkpoint)[0] - want).max() < FLOAT_ERROR * want.std()
    spec = lowered(checkpoint, dtype="float32")
    got = all_logits(spec, load_weights(spec, checkpoint.tensors), IDS, chunk=64)
    assert rms(got - want).max() < FLOAT_ERROR * want.std()


def test_packed_weights_are_the_files_numbers(made: tuple[Path, Path]) -> None:
    """As served: every number of every matrix, to the bit, in the native panels and in the reference executor."""
    path, dense = made
    want = open_checkpoint(dense).tensors
    checkpoint = open_checkpoint(path)
    spec = lowered(checkpoint, backend="native", dtype="auto")
    reference = load_weights(spec, checkpoint.tensors)
    backend = native_backend(spec, checkpoint, num_blocks=2)
    compared = 0
    for placed in spec.weights:
        weight = placed.weight
        if placed.format == "vec":
            continue
        parts = [want[part.tensor].read().view(np.float32).reshape(part.rows, weight.k) for part in weight.parts]
        numbers = np.concatenate(parts)
        np.testing.assert_array_equal(reference[weight.name].reshape(numbers.shape), numbers)
        panels = backend.weights.view(backend.offsets[weight.name], placed.bytes)
        for expert in range(weight.experts):
            own = panels[expert * placed.stride : (expert + 1) * placed.stride]
            rows = numbers[expert * weight.n : (expert + 1) * weight.n]
            np.testing.assert_array_equal(unpacked(placed.format, weight.n, weight.k, own), rows)
        compared += numbers.size
    backend.close()
    assert compared == sum(tensor.nbytes // 4 for tensor in want.values() if len(tensor.shape) == 2)
    kinds = {placed.format for placed in spec.weights} - {"vec"}
    assert kinds and "bf16" not in kinds


def cache_of(backend: Any, spec: Any) -> F32:
    """The native K and V of one group as the reference keeps them: its keys lie dim by dim within a block."""
    (group,) = spec.kv
    heads, size, width = group.kv_heads, group.block_size, group.head_dim
    pool = backend._kv.view(0, backend._kv.nbytes).view(np.float32)
    own = pool.reshape(-1, group.layers, 2, heads, size, width).swapaxes(0, 1)
    keys = own[:, :, 0].reshape(group.layers, -1, heads, width, size).swapaxes(-1, -2)
    return np.stack([keys, own[:, :, 1]], axis=2)


def row_by_row(spec: Any, weights: Any, cache: F32) -> F32:
    """The reference executor's logits [len(IDS), vocab]. Each position finds the others' K and V in `cache`, so that
    what is off in one row is not off in all behind it."""
    executable = ReferenceExecutable(spec, weights, num_blocks=cache.shape[1])
    sequence = Sequence1(executable, num_blocks=cache.shape[1])
    out = []
    for token in IDS:
        executable.kv[0][...] = cache
        sequence.compute([token], rows=1, chunk=1)
        out.append(executable.logits(0).copy())
    return np.stack(out)


def test_logits_as_served(
    made: tuple[Path, Path], figures: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    path, dense = made
    want = dense_logits(dense, IDS)
    checkpoint = open_checkpoint(path)
    spec = lowered(checkpoint, backend="native", dtype="auto", kv_dtype="f32")
    got, cache = native_run(spec, checkpoint)
    assert (native_run(spec, checkpoint, len(IDS))[0] == got).all(), "whole"
    off = rms(got - row_by_row(spec, load_weights(spec, checkpoint.tensors), cache)) / want.std()
    assert np.quantile(off, SHARE) < NATIVE_ERROR and off.max() < TIE
    assert np.median(rms(got - want)) < SERVED_ERROR * want.std()
    mix = request.node.callspec.params["made"]
    family = "mixtral" if "experts" in mix else "llama"
    figures.append({"family": family, "source": "GGUF", "format": mix, **errors(got, want)})
