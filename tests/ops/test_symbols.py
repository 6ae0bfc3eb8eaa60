"""Nothing inline is shared between the instruction sets' objects: the linker would keep one copy, perhaps AVX-512's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

GIVEN = os.environ.get("OCTAVO_BUILD_DIR")
"""A build folder of CMake's; without one, that of scripts/dev-build."""
BUILD = Path(GIVEN or Path(__file__).parents[2] / "build" / "dev") / "CMakeFiles"
X86 = ("avx2", "avx512vnni", "avx512bf16") if platform.machine() in ("x86_64", "amd64") else ()
LENT = {"avx512bf16": ("octavo::avx512vnni::linear_int",)}
"""Names of another variant that one may use: it runs only where that one runs too."""


@pytest.mark.parametrize("isa", ["scalar", *X86])
def test_objects_define_only_their_own_names(isa: str) -> None:
    objects = sorted(BUILD.glob(f"octavo_{isa}.dir/**/*.o"))
    if not GIVEN and not (objects and shutil.which("nm")):
        pytest.skip("needs nm and the objects of scripts/dev-build, or others in OCTAVO_BUILD_DIR")
    assert objects, f"OCTAVO_BUILD_DIR: {GIVEN} holds no objects of {isa}"
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
