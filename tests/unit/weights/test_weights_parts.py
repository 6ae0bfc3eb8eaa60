"""Split GGUF files: one model from any of its parts, and what does not belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import FileFormatError, ModelError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.gguf_parts import is_later_part, part_names
from octavo.weights.source import resolve_model
from octavo.weights.tags import choose_file
from tests.unit.weights.gguf_maker import LLAMA, gguf_bytes, llama_tensors
from tests.unit.weights.test_weights_source import FakeHub

TENSORS = llama_tensors()
CUTS = (0, 0, 5, len(TENSORS))
"""The first part has the metadata alone, as `--no-tensor-first-split` writes it."""


def write_parts(folder: Path, **changes: Any) -> list[Path]:
    """Three parts; `changes` are metadata of the last, or its tensors."""
    paths = []
    for no in range(3):
        about: dict[str, Any] = {"split.no": no, "split.count": 3, "split.tensors.count": len(TENSORS)}
        tensors = TENSORS[CUTS[no] : CUTS[no + 1]]
        if no == 2:
            tensors = changes.pop("tensors", tensors)
            about.update({key.replace("_", "."): value for key, value in changes.items()})
        paths.append(folder / f"m-0000{no + 1}-of-00003.gguf")
        paths[-1].write_bytes(gguf_bytes({**(LLAMA if no == 0 else {}), **about}, tensors))
    return paths


def test_from_any_part(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(gguf_bytes(LLAMA, TENSORS))
    want = open_checkpoint(whole)
    (tmp_path / "split").mkdir()
    parts = write_parts(tmp_path / "split")
    found = [open_checkpoint(path) for path in (*parts, tmp_path / "split")]
    for got in found:
        assert got.config == want.config
        assert list(got.tensors) == list(want.tensors)
        assert all(np.array_equal(got.tensors[n].read(), t.read()) for n, t in want.tensors.items())
    assert len({got.content_id for got in found}) == 1
    data = bytearray(parts[2].read_bytes())
    data[-len(TENSORS[-1][3])] ^= 1
    parts[2].write_bytes(data)
    assert open_checkpoint(parts[0]).content_id != found[0].content_id


@pytest.mark.parametrize("gone", range(3))
def test_a_missing_part_is_named(gone: int, tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    parts[gone].unlink()
    with pytest.raises(ModelError, match=rf"{parts[gone].name}: no such file"):
        open_checkpoint(parts[0 if gone else 1])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"split_no": 1}, "split.no: got 1, allowed: 2"),
        ({"split_count": 2}, "split.count: got 2, allowed: 3"),
        ({"split_count": "3"}, "split.count: got '3'"),
        ({"split_tensors.count": 7}, "split.tensors.count: got 7"),
        ({"tensors": TENSORS[4:]}, "got it in two parts"),
    ],
)
def test_a_foreign_part_is_named(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    parts = write_parts(tmp_path, **changes)
    with pytest.raises(FileFormatError) as caught:
        open_checkpoint(parts[0])
    assert says in str(caught.value) and parts[2].name in str(caught.value)


def test_tensors_short_of_the_count(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, tensors=TENSORS[5:-1])
    with pytest.raises(FileFormatError, match=f"split.tensors.count: got {len(TENSORS)}"):
        open_checkpoint(parts[1])


def test_a_renamed_part(tmp_path: Path) -> None:
    part = write_parts(tmp_path)[1].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"model\.gguf: one part of a GGUF file split in 3"):
        open_checkpoint(part)


def test_names() -> None:
    assert part_names("a/b-00002-of-00002.gguf") == ["a/b-00001-of-00002.gguf", "a/b-00002-of-00002.gguf"]
    for whole in ("b.gguf", "b-00001-of-00001.gguf", "b-1-of-2.gguf", "b-00001-of-99999.gguf"):
        assert part_names(whole) == [whole] and not is_later_part(whole)
    assert is_later_part("b-00002-of-00002.gguf") and not is_later_part("b-00001-of-00002.gguf")


def test_all_parts_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"q8/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub = FakeHub(monkeypatch, tmp_path, [*names, "m-Q4_0.gguf"])
    assert choose_file("org/name", "Q8_0", hub.files) == names[0]
    assert choose_file("org/name", names[1], hub.files) == names[0]
    assert resolve_model("org/name:Q8_0", progress=False).path == tmp_path / names[0]
    assert [name for kind, name, _ in hub.asked if kind == "file"] == names
