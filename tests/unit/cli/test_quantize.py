"""`octavo quantize`: what it writes is served bit for bit like the original with --quantization, or not written."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import LLM
from octavo.cli import main as entry
from octavo.cli.errors import FAILED, OK, USAGE
from octavo.errors import ConfigError, ModelError
from octavo.quant.table import FORMATS, GGUF_BLOCKS, PACKED
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import SOURCES, open_checkpoint
from octavo.weights.front import SAVED
from octavo.weights.gguf import GGML_TYPES
from octavo.weights.safetensors import SafetensorsFile
from tests.models.harness import lowered, served_logits
from tests.ops.linear_cases import source as random_rows
from tests.quantized_maker import write_quantized
from tests.tiny import VOCAB, write_tiny
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors

native = pytest.importorskip("octavo._native", reason="the native module is not built")
IDS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 30)]

FLOAT_FORMATS = {"int4": {"int4m", "int8"}, "int8": {"int8"}}
"""--format -> what float matrices become (with int4, some layers get 8 bits: program/precision.py)."""


def logits(path: Path, ids: list[int] = IDS, *, quantization: str | None = None) -> NDArray[np.float32]:
    return served_logits(open_checkpoint(path), ids, quantization=quantization)


def quantize(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = entry.main(["quantize", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("form", ["int4", "int8"])
@pytest.mark.parametrize("variant", ["llama", "llama-odd", "qwen2-tied", "llama-llama3-old", "llama-f16", "qwen3-moe"])
def test_bits_of_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str], variant: str, form: str) -> None:
    source, out = write_tiny(tmp_path / "in", variant), tmp_path / "out"
    code, said, _ = quantize(capsys, str(source), str(out), "--format", form, "--no-eval")
    assert code == OK and "MB" in said
    before, after = open_checkpoint(source), open_checkpoint(out)
    assert after.config == before.config and after.tokenizer_spec == before.tokenizer_spec
    assert after.chat_templates == before.chat_templates and after.generation_config == before.generation_config
    packed = {t.source for t in after.tensors.values() if t.source.startswith(PACKED)}
    assert PACKED + {"int4": "int4m", "int8": "int8"}[form] in packed
    np.testing.assert_array_equal(logits(out), logits(source, quantization=form))


def test_matrices_lie_on_cache_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(capsys, str(write_tiny(tmp_path / "in", "qwen2")), str(tmp_path / "out"), "--no-eval")
    file = SafetensorsFile(tmp_path / "out" / "model.safetensors")
    base = 8 + len(file.header)
    assert base % 64 == 0
    entries = json.loads(file.header)
    assert entries.pop("__metadata__") == {"format": "octavo-packed", "version": "1"}
    begins = [entry["data_offsets"][0] for entry in entries.values() if entry["dtype"] == "U8"]
    assert len(begins) == 3 * 4 + 2 and all(begin % 64 == 0 for begin in begins)


def test_codes_of_a_quantised_directory_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_quantized(tmp_path, "ct-w4a16")
    code, said, _ = quantize(capsys, str(made.directory), str(tmp_path / "out"), "--no-eval")
    assert code == OK and "kept exactly" in said
    np.testing.assert_array_equal(logits(tmp_path / "out"), logits(made.directory, quantization="int4"))


TEXTS = ["<|im_end|>", "a", "b", "ab", "<|endoftext|>", *"cdefghijklmnopq"]
"""The vocabulary of the GGUF files below."""


def write_gguf(path: Path, kind: str) -> Path:
    """A one-layer llama of width 256, so that every block type fits: its matrices are random blocks of `kind`."""
    metadata = LLAMA | {
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "tokenizer.ggml.tokens": TEXTS,
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 3, *[1] * (len(TEXTS) - 5)],
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    code = next(code for code, (name, _, _) in GGML_TYPES.items() if name.lower() == kind)
    rng = np.random.default_rng(8)
    sizes = {5: len(TEXTS), 32: 128, 64: 256, 96: 512}
    tensors: list[tuple[str, tuple[int, ...], int, bytes]] = []
    for name, shape, _, _ in llama_tensors():
        if len(shape) == 1:
            tensors.append((name, (256,), 0, rng.uniform(0.5, 1.5, 256).astype("<f4").tobytes()))
            continue
        n, k = (sizes[size] for size in shape)
        tensors.append((name, (n, k), code, random_rows(kind, n, k, rng)[0].tobytes()))
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, "int4") for kind in GGUF_BLOCKS), *((kind, f) for kind in ("f32", "f16", "bf16") for f in FLOAT_FORMATS)],
)
def test_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, form: str) -> None:
    """Codes of the file are kept, float matrices quantised; logits have the bits of the file loaded directly."""
    file, out = write_gguf(tmp_path / "m.gguf", kind), tmp_path / "out"
    code, said, err = quantize(capsys, str(file), str(out), "--format", form, "--no-eval")
    assert code == OK, err
    assert ("codes are kept as they are" in said) == (kind in GGUF_BLOCKS)
    before, after = open_checkpoint(file), open_checkpoint(out)
    assert after.chat_templates == before.chat_templates and len(after.chat_templates) == 2
    assert after.generation_config == before.generation_config
    packed = {t.source.removeprefix(PACKED) for t in after.tensors.values() if t.source.startswith(PACKED)}
    kept = {row.name for row in FORMATS.values() if kind in row.holds}
    assert packed and packed <= (kept if kind in GGUF_BLOCKS else FLOAT_FORMATS[form])
    ids = [i % len(TEXTS) for i in IDS]
    expected = logits(file, ids, quantization=None if kind in GGUF_BLOCKS else form)
    assert np.isfinite(expected).all() and expected.std() > 0
    np.testing.assert_array_equal(logits(out, ids), expected)


def test_the_vocabulary_of_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write_gguf(tmp_path / "m.gguf", "q8_0"), tmp_path / "out"
    assert quantize(capsys, str(file), str(out), "--no-eval")[0] == OK
    assert (out / SAVED).is_file() and not (out / "tokenizer.json").exists()
    before, after = open_checkpoint(file).tokenizer_spec, open_checkpoint(out).tokenizer_spec
    assert after["key"] == before["key"] and after["eos_ids"] == before["eos_ids"]
    old, new = Tokenizer.from_spec(before), Tokenizer.from_spec(after)
    assert new.encode("abba") == old.encode("abba") == [3, 2, 1]
    assert new.decode([3, 5, 4], skip_special_tokens=False) == old.decode([3, 5, 4], skip_special_tokens=False)
    assert new.token_id("<|im_end|>") == 0


def test_perplexity_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat. " * 20)
    source = write_tiny(tmp_path / "in", "llama")
    code, said, _ = quantize(capsys, str(source), str(tmp_path / "out"), "--format", "int8", "--text", str(text))
    assert code == OK
    words = said.splitlines()[-1].split()
    assert words[0] == "perplexity" and float(words[3]) == pytest.approx(float(words[1]), rel=0.05)


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_tiny(tmp_path / "in", "llama"), tmp_path / "out"
    assert quantize(capsys, str(source), str(out), "--no-eval")[0] == OK
    marker = out / "model.safetensors"
    before = marker.stat().st_mtime_ns
    code, _, err = quantize(capsys, str(source), str(out), "--no-eval")
    assert code == USAGE and "--force" in err and marker.stat().st_mtime_ns == before
    assert quantize(capsys, str(source), str(out), "--no-eval", "--force")[0] == OK
    assert marker.stat().st_mtime_ns != before
    code, _, err = quantize(capsys, str(source), str(source), "--no-eval", "--force")  # the original is nobody's
    assert code == USAGE and "octavo quantize wrote" in err and (source / "model.safetensors").exists()
    code, _, err = quantize(capsys, str(out), str(tmp_path / "again"), "--no-eval")
    assert code == USAGE and "packed" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_failures_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tiny(tmp_path / "in", "llama")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    code, _, err = quantize(capsys, str(source), str(tmp_path / "out"), "--no-eval")
    assert code == FAILED and "not written" in err
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_signal_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while matrices are packed."""
    source = write_tiny(tmp_path / "in", "llama")
    script = (
        "import octavo.runner.pack_directory as p, time\n"
        "real = p.fill\n"
        "def slow(*a, **k):\n print('packing', flush=True); time.sleep(0.5); real(*a, **k)\n"
        "p.fill = slow\n"
        "from octavo.cli.main import main\n"
        f"main(['quantize', {str(source)!r}, {str(tmp_path / 'out')!r}, '--no-eval'])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert child.stdout is not None and child.stdout.readline() == "packing\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=30) == 128 + signal.SIGTERM
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": 2}, r"version: got 2, allowed: 1"),
    "panel": ({"panel": 32}, "panel: got 32, allowed: 16"),
    "no table": ({"weights": None}, "weights"),
    "a format of tomorrow": (
        {"weights": {"lm_head.weight": {"format": "int3", "shape": [320, 64]}}},
        "got 'int3'|listed in",
    ),
    "a shape of other bytes": (
        {"weights": {"model.embed_tokens.weight": {"format": "int8", "shape": [640, 64]}}},
        r"model\.embed_tokens\.weight \(packed: got shape",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_foreign_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], lie: str) -> None:
    edit, says = LIES[lie]
    out = tmp_path / "out"
    quantize(capsys, str(write_tiny(tmp_path / "in", "llama")), str(out), "--no-eval")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] |= edit
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=says):
        LLM(str(out), executor="reference")


def test_the_exact_mode_and_the_reference_refuse_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from octavo.program.interpret import load_weights

    out = tmp_path / "out"
    quantize(capsys, str(write_tiny(tmp_path / "in", "llama")), str(out), "--no-eval")
    checkpoint = open_checkpoint(out)
    with pytest.raises(ConfigError, match="--dtype"):
        lowered(checkpoint, dtype="float32")
    with pytest.raises(ConfigError, match="--quantization"):
        lowered(checkpoint, dtype="auto", quantization="int8")
    with pytest.raises(ModelError, match="--executor native"):
        load_weights(lowered(checkpoint, dtype="auto"), checkpoint.tensors)


LAYOUTS = {
    "f32": ("f32", 96, 64, "4c2ff454241383da"),
    "bf16": ("bf16", 96, 64, "384dac78d4b0cddd"),
    "int8": ("q8_0", 96, 64, "13168f4f05692b68"),
    "int8f": ("s8", 96, 256, "98602c755e02c35f"),
    "int8t": ("s8c", 96, 256, "df8a62c9c20a6e6e"),
    "int6k": ("q6_k", 512, 256, "f31c71fbcd70b47d"),
    "int5m": ("q5_1", 96, 256, "05f4647b6a810c0b"),
    "int5k": ("q5_k", 512, 256, "3ce08043d2287b2c"),
    "int5": ("q5_0", 96, 256, "692198400ccf3221"),
    "int4m": ("q4_1", 96, 64, "7777b9dae1f275bb"),
    "int4z": ("z4", 96, 256, "8bd98a3431c802a9"),
    "int4k": ("q4_k", 512, 256, "6b264a9b99066b00"),
    "int4": ("q4_0", 96, 64, "3fa98d091223ba03"),
    "int4n": ("iq4_nl", 96, 256, "25fed9941295ceef"),
    "int4x": ("iq4_xs", 512, 256, "e23aa6b7f16e8dbc"),
    "int4e": ("mxfp4", 96, 256, "4a5f00a3a2c4020e"),
    "int3k": ("q3_k", 512, 256, "9623c1de2a06949d"),
    "int2k": ("q2_k", 512, 256, "954391fc6c9ca63f"),
}
"""Execution format -> the source it is packed from, columns, the bound of the source's random bytes, the digest."""


def layout(form: str) -> str:
    source, columns, bound, _ = LAYOUTS[form]
    block, size = SOURCES[source]
    raw = np.random.default_rng(0).integers(0, bound, 32 * columns // block * size).astype(np.uint8)
    nbytes = native.packed_bytes(form, 32, columns)
    dst = native.Arena(nbytes).view(0, nbytes)
    native.pack(form, source, 32, columns, raw, dst, col0=0, n_total=32, threads=1)
    return hashlib.sha256(dst.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("form", FORMATS)
def test_the_layout_of_version_1(form: str) -> None:
    """Directories on disks hold these bytes: when this fails, raise VERSION in weights/quantized/packed.py.

    A new format gets a row: nothing is on disks in it yet.
    """
    assert layout(form) == LAYOUTS[form][3]
