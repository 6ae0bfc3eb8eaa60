"""AVX-512 row kernels and attention over codes, by SIMDe where the CPU has no AVX-512: every bit as scalar's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

native = pytest.importorskip("octavo.kernels.native", reason="the native module is not built (scripts/dev-build)")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "sources"),
    [("rows", ("kernels/rows", "quantize")), ("attend", ("kernels/attend", "kernels/rows", "quantize"))],
)
def test_avx512_emulated(program: str, sources: tuple[str, ...], tmp_path: Path) -> None:
    if not Path("/usr/include/simde/x86/avx512.h").exists() or not shutil.which("g++"):
        pytest.skip("needs g++ and the headers of libsimde-dev")
    if "avx2" not in native.isas():
        pytest.skip("the emulation needs AVX2")
    common = ["g++", "-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fno-math-errno", f"-I{ROOT}/native/include"]
    objects = []
    for isa in ("scalar", "avx512vnni"):
        flags = [f"-DOCTAVO_ISA_NS={isa}", f"-DOCTAVO_ISA_{isa.upper()}=1"]
        if isa != "scalar":
            flags += ["-DOCTAVO_EMULATE_AVX512=1", "-mavx2", "-mfma", "-mf16c"]
        for source in sources:
            objects.append(str(tmp_path / f"{Path(source).name}.{isa}.o"))
            command = [*common, *flags, "-c", f"{ROOT}/native/src/{source}.cpp", "-o", objects[-1]]
            subprocess.run(command, check=True)
    binary = str(tmp_path / "emulated")
    subprocess.run([*common, f"{ROOT}/native/tests/emulated/{program}.cpp", *objects, "-o", binary], check=True)
    done = subprocess.run([binary], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
