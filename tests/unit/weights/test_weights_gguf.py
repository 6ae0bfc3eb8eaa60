"""The GGUF reader: what it reads, and every lie it refuses (S19)."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import FileFormatError, ModelError
from octavo.weights.gguf import GGML_TYPES, GGUFArray, GGUFFile
from tests.child import child_env
from tests.models_at_hand import smollm2
from tests.unit.weights.gguf_maker import ARRAY, U32, gguf_bytes, text, write


def test_reads_what_was_written(tmp_path: Path) -> None:
    metadata = {
        "a.int": 7,
        "a.float": 0.5,
        "a.flag": True,
        "a.text": "héllo",
        "a.words": ["x", "", "yß"],
        "a.ids": [3, -1],
    }
    tensors = [("one", (2, 32), 0, bytes(range(256))), ("two", (3, 32), 3, bytes(60))]
    file = GGUFFile(write(tmp_path / "m.gguf", gguf_bytes(metadata, tensors)))
    words, ids = file.metadata["a.words"], file.metadata["a.ids"]
    assert isinstance(words, GGUFArray) and isinstance(ids, GGUFArray)
    assert list(words) == ["x", "", "yß"] and words[-1] == "yß" and words[:2] == ["x", ""] and len(words) == 3
    assert list(ids) == [3, -1] and ids[1] == -1
    assert {k: v for k, v in file.metadata.items() if k not in ("a.words", "a.ids")} == {
        "a.int": 7,
        "a.float": 0.5,
        "a.flag": True,
        "a.text": "héllo",
    }
    one, two = file.tensors["one"], file.tensors["two"]
    assert (one.type, one.shape, bytes(one.data)) == ("F32", (2, 32), bytes(range(256)))
    assert (two.type, two.shape, two.nbytes) == ("Q4_1", (3, 32), 60)


def test_agrees_with_the_gguf_package(gguf_reader: Any) -> None:
    import gguf

    ours, theirs = GGUFFile(smollm2()), gguf_reader
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        got, want = ours.metadata[key], field.contents()
        assert (list(got) if isinstance(got, GGUFArray) else got) == want, key
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.offset, mine.nbytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
    for kind, (name, block, size) in GGML_TYPES.items():
        if name == "Q8_1":
            continue  # the package still has 40; ggml's block has been 36 since it became f16, and no file holds one
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (block, size), name


def test_opening_makes_no_object_a_vocabulary_entry() -> None:
    path = smollm2()
    tracemalloc.start()
    try:
        file = GGUFFile(path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, GGUFArray)
    assert kept < 16 * (2 * len(tokens)) + 400_000, "more than offsets are kept"
    assert tokens[2] == "<|im_end|>"


HEAD = struct.Struct("<4sIQQ")
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "bytes"),
    "short": (b"GGUF", "bytes"),
    "magic": (HEAD.pack(b"GGML", 3, 0, 0), "magic"),
    "version": (HEAD.pack(b"GGUF", 1, 0, 0), "version"),
    "n_kv": (HEAD.pack(b"GGUF", 3, 0, 0xFFFFFFFF), "number of metadata entries"),
    "n_kv huge": (HEAD.pack(b"GGUF", 3, 0, 2**64 - 1), "number of metadata entries"),
    "n_tensors": (HEAD.pack(b"GGUF", 3, 2**63, 0), "number of tensors"),
    "key length": (HEAD.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**63) + bytes(64), "key of metadata entry"),
    "string length": (
        HEAD.pack(b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IQ", 8, 2**64 - 1) + bytes(64),
        "bytes at offset",
    ),
    "value type": (HEAD.pack(b"GGUF", 3, 0, 1) + text("k") + struct.pack("<I", 99) + bytes(64), "type of k"),
    "array length": (
        HEAD.pack(b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, U32, 2**62) + bytes(64),
        "length of k",
    ),
    "array of arrays": (
        HEAD.pack(b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(64),
        "no arrays of arrays",
    ),
    "array string": (
        HEAD.pack(b"GGUF", 3, 0, 1) + text("k") + struct.pack("<IIQQ", ARRAY, 8, 2, 2**60) + bytes(64),
        "length of k[0]",
    ),
    "key twice": (HEAD.pack(b"GGUF", 3, 0, 2) + 2 * (text("k") + struct.pack("<IB", 7, 1)) + bytes(32), "twice"),
    "not UTF-8": (HEAD.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(64), "UTF-8"),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), "general.alignment"),
    "alignment 3": (gguf_bytes({"general.alignment": 3}), "general.alignment"),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), "general.alignment"),
    "alignment huge": (gguf_bytes({"general.alignment": 2**31}), "general.alignment"),
    "no dims": (gguf_bytes({}, [("t", (), 0, bytes(64))]), "number of dimensions"),
    "five dims": (gguf_bytes({}, [("t", (1, 1, 1, 1, 1), 0, bytes(64))]), "number of dimensions"),
    "zero dim": (gguf_bytes({}, [("t", (4, 0), 0, bytes(64))]), "dimensions of tensor t"),
    "dims overflow": (gguf_bytes({}, [("t", (2**33, 2**33), 0, bytes(64))]), "dimensions of tensor t"),
    "ragged block": (gguf_bytes({}, [("t", (2, 33), 3, bytes(640))]), "multiple of 32"),
    "type": (gguf_bytes({}, [("t", (4,), 77, bytes(64))]), "type of tensor t"),
    "past the end": (gguf_bytes({}, [("t", (64,), 0, bytes(64))]), "up to 64"),
    "offset past": (gguf_bytes({}, [("t", (4,), 0, bytes(64))], offsets=[2**40]), "of the data"),
    "offset huge": (gguf_bytes({}, [("t", (4,), 0, bytes(64))], offsets=[2**64 - 32]), "of the data"),
    "misaligned": (gguf_bytes({}, [("t", (4,), 0, bytes(64))], offsets=[4]), "multiple of the alignment"),
    "overlap": (
        gguf_bytes({}, [("a", (16,), 0, bytes(64)), ("b", (16,), 0, bytes(64))], offsets=[0, 32]),
        "overlap",
    ),
    "name twice": (gguf_bytes({}, [("a", (4,), 0, bytes(16)), ("a", (4,), 0, bytes(16))]), "twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_refuses(lie: str, tmp_path: Path) -> None:
    data, says = LIES[lie]
    path = write(tmp_path / "m.gguf", data)
    with pytest.raises(FileFormatError) as caught:
        GGUFFile(path)
    assert says in str(caught.value) and "got" in str(caught.value) and "allowed" in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes({"a.words": ["x", "y"], "a.int": 3}, [("t", (8,), 0, bytes(32))])
    for size in range(len(whole)):
        with pytest.raises(FileFormatError):
            GGUFFile(write(tmp_path / "m.gguf", whole[:size]))


def test_other_kinds_of_file(tmp_path: Path) -> None:
    big_endian = struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)
    with pytest.raises(ModelError, match="big-endian"):
        GGUFFile(write(tmp_path / "m.gguf", big_endian))
    with pytest.raises(ModelError, match="cannot be opened"):
        GGUFFile(tmp_path / "none.gguf")


def test_needs_no_numpy(tmp_path: Path) -> None:
    import subprocess

    code = "import sys, octavo.weights.gguf_names; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=child_env()).returncode == 0
