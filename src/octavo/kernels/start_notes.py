"""What a user should know of the machine before the first request: which promise or which speed it does not get."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator
from pathlib import Path

from octavo.kernels import native
from octavo.kernels.machine import cpu_flags, memory_nodes

VARIANTS = {"avx512_bf16": "avx512bf16", "avx512_vnni": "avx512vnni", "avx2": "avx2"}
"""A processor's flag (Linux's name) -> the kernels it is for."""


def start_notes(cpus: Collection[int], *, nodes: Path | None = None) -> Iterator[str]:
    """Warnings, a sentence each. `cpus`: those that kernels may run on; `nodes`: where nodes are listed (for tests)."""
    if native.isas() == ["scalar"]:
        machine = platform.machine()
        yield f"no tuned kernels for this processor ({machine}): the plain ones give the same bits, many times slower"
    for flag in sorted(VARIANTS.keys() & cpu_flags()):
        if reason := native.isa_note(VARIANTS[flag]):
            yield f"the processor has {flag}, but {VARIANTS[flag]} cannot be used: {reason}"
    spanned = memory_nodes(cpus) if nodes is None else memory_nodes(cpus, nodes=nodes)
    if len(spanned) > 1:
        names = ", ".join(map(str, spanned))
        yield (
            f"kernels run on {len(spanned)} NUMA nodes ({names}), weights and KV cache are not placed by node: "
            f"to keep them near, run a server a node (numactl --cpunodebind={spanned[0]} --membind={spanned[0]} ...)"
        )
