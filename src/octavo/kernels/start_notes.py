"""What a user should know of the machine before the first request: which promise or which speed it does not get."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterator
from pathlib import Path

from octavo.kernels import native
from octavo.kernels.machine import memory_nodes

ROUNDING = "ordered"
"""In the reason why a CPU that has vdpbf16ps must not use it."""


def start_notes(cpus: Collection[int], *, nodes: Path | None = None) -> Iterator[str]:
    """Warnings, a sentence each. `cpus`: those that kernels may run on; `nodes`: where nodes are listed (for tests)."""
    if native.isas() == ["scalar"]:
        machine = platform.machine()
        yield f"no tuned kernels for this processor ({machine}): the plain ones give the same bits, many times slower"
    refused = native.isa_note("avx512bf16")
    if ROUNDING in refused:
        yield f"avx512bf16 is not used, {native.isa()} is: {refused}"
    spanned = memory_nodes(cpus) if nodes is None else memory_nodes(cpus, nodes=nodes)
    if len(spanned) > 1:
        names = ", ".join(map(str, spanned))
        yield (
            f"kernels run on {len(spanned)} NUMA nodes ({names}), weights and KV cache are not placed by node: "
            f"a server a node is faster (numactl --cpunodebind={spanned[0]} --membind={spanned[0]} octavo serve ...)"
        )
