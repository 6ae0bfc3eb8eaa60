"""What tests/conftest.py promises."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.child import ROOT, child_env


@pytest.mark.parametrize(
    ("content", "codes", "text"),
    [
        (None, (0, 5), "1 skipped"),
        (b"cut off while it was linked", (4,), "is there and cannot be used: ImportError"),
    ],
    ids=["none", "broken"],
)
def test_a_built_module_that_cannot_be_imported_fails_the_run(
    tmp_path: Path, content: bytes | None, codes: tuple[int, ...], text: str
) -> None:
    package = tmp_path / "octavo"
    package.mkdir()
    for path in Path(*importlib.import_module("octavo").__path__).iterdir():
        if not path.name.startswith("_native"):
            (package / path.name).symlink_to(path)
    if content is not None:
        (package / f"_native{EXTENSION_SUFFIXES[0]}").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/runner/test_matrices.py"],
        cwd=ROOT,
        env=child_env(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = done.stdout + done.stderr
    assert done.returncode in codes and text in said, said
