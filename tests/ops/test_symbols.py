"""Nothing inline is shared between the instruction sets' objects: the linker would keep one copy, perhaps AVX-512's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build" / "dev" / "CMakeFiles"
ISAS = ("scalar", "avx2", "avx512vnni", "avx512bf16")
LENT = {"avx512bf16": ("octavo::avx512vnni::linear_int",)}
"""Names of another variant that one may use: it runs only where that one runs too."""


@pytest.mark.parametrize("isa", ISAS)
def test_objects_define_only_their_own_names(isa: str) -> None:
    objects = sorted(BUILD.glob(f"octavo_{isa}.dir/**/*.o"))
    if not objects or not shutil.which("nm"):
        pytest.skip("needs nm and the objects of scripts/dev-build")
    foreign, undefined = [], []
    for path in objects:
        done = subprocess.run(["nm", "--demangle", str(path)], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            kind, _, name = line[17:].partition(" ")
            if kind in "WVuw" or (kind.isupper() and kind != "U" and f"octavo::{isa}::" not in name):
                foreign.append(f"{path.name}: {kind} {name}")
            if kind == "U" and not name.startswith((f"octavo::{isa}::", *LENT.get(isa, ()))):
                undefined.append(name)
    assert not foreign, foreign
    # memcpy and memset move bytes; anything else (libm, the C++ library) has no business in a kernel.
    allowed = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
    assert set(undefined) <= allowed, set(undefined) - allowed
