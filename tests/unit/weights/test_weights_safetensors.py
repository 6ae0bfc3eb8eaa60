"""The safetensors reader: agrees with the package, refuses every lie (S19)."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import FileFormatError
from octavo.weights.safetensors import SafetensorsFile


def test_agrees_with_the_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="the safetensors package is the oracle")
    rng = np.random.default_rng(0)
    arrays = {
        "b": rng.standard_normal((3, 5), dtype=np.float32),
        "a": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.0, np.float64),
    }
    package.save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert set(file.tensors) == set(arrays)
    for name, array in arrays.items():
        tensor = file.tensors[name]
        assert tensor.shape == array.shape and bytes(tensor.data) == array.tobytes()


def made(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def entry(shape: list[object], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES: dict[str, tuple[object, bytes, str]] = {
    "not JSON": (b"{nope", b"", "invalid JSON"),
    "deep JSON": (b"[" * 200_000, b"", "invalid JSON"),
    "not UTF-8": (b'{"\xff":1}', b"", "invalid JSON"),
    "not an object": ([1], b"", "header"),
    "a key twice": (b'{"a":1,"a":1}', b"", "twice"),
    "entry": ({"a": 3}, b"", "entry a"),
    "extra key": ({"a": {**entry([1], 0, 4), "more": 1}}, bytes(4), "entry a"),
    "dtype": ({"a": entry([1], 0, 4, "F33")}, bytes(4), "dtype of a"),
    "dtype kind": ({"a": {**entry([1], 0, 4), "dtype": [1]}}, bytes(4), "dtype of a"),
    "negative size": ({"a": entry([-1], 0, 4)}, bytes(4), "shape of a"),
    "bool size": ({"a": entry([True], 0, 4)}, bytes(4), "shape of a"),
    "float size": ({"a": entry([1.0], 0, 4)}, bytes(4), "shape of a"),
    "rank": ({"a": entry([1] * 9, 0, 4)}, bytes(4), "shape of a"),
    "overflow": ({"a": entry([2**62, 2**62], 0, 4)}, bytes(4), "data_offsets of a"),
    "backwards": ({"a": entry([1], 4, 0)}, bytes(4), "data_offsets of a"),
    "wrong length": ({"a": entry([2], 0, 4)}, bytes(4), "8 bytes"),
    "past the end": ({"a": entry([2], 0, 8)}, bytes(4), "end up to 4"),
    "hole": ({"a": entry([1], 4, 8)}, bytes(8), "no holes"),
    "overlap": ({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, bytes(8), "data_offsets of b"),
    "rest": ({"a": entry([1], 0, 4)}, bytes(8), "data: got 8 bytes"),
}


@pytest.mark.parametrize("lie", LIES)
def test_refuses(lie: str, tmp_path: Path) -> None:
    header, data, says = LIES[lie]
    with pytest.raises(FileFormatError) as caught:
        SafetensorsFile(made(tmp_path / "m.safetensors", header, data))
    assert says in str(caught.value) and "allowed" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_refuses_header_lengths(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" * 20)
    with pytest.raises(FileFormatError, match="length of the header"):
        SafetensorsFile(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "whole", {"a": entry([2], 0, 8)}, bytes(8))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError):
            SafetensorsFile(path)
