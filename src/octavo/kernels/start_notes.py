"""What a user should know of the machine before the first request: which promise or which speed it does not get."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from octavo.kernels import native
from octavo.kernels.machine import cpu_flags

VARIANTS = {"avx512_bf16": "avx512bf16", "avx512_vnni": "avx512vnni", "avx2": "avx2"}
"""A processor's flag (Linux's name) -> the kernels it is for."""


def start_notes() -> Iterator[str]:
    """Warnings, a sentence each."""
    if native.isas() == ["scalar"]:
        machine = platform.machine()
        yield f"no tuned kernels for this processor ({machine}): the plain ones give the same bits, many times slower"
    for flag in sorted(VARIANTS.keys() & cpu_flags()):
        if reason := native.isa_note(VARIANTS[flag]):
            yield f"the processor has {flag}, but {VARIANTS[flag]} cannot be used: {reason}"
