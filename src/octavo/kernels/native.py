"""The native backend's module, with what only Python decides: which instruction set, how many threads, on which CPUs.

`OCTAVO_ISA` lowers the instruction set (scalar, avx2, avx512vnni, avx512bf16, in any case).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from octavo import _native
from octavo._native import Arena as Arena
from octavo._native import Executable as Executable
from octavo._native import Team as Team
from octavo._native import can_pack as can_pack
from octavo._native import isa as isa
from octavo._native import isa_note as isa_note
from octavo._native import isas as isas
from octavo._native import pack as pack
from octavo._native import packed_bytes as packed_bytes
from octavo._native import rope_rows as rope_rows
from octavo._native import row_bytes as row_bytes
from octavo._native import set_isa as set_isa
from octavo._native import unpack_rows as unpack_rows
from octavo.errors import ConfigError
from octavo.kernels.cgroup import cpu_quota
from octavo.kernels.machine import nodes_of
from octavo.kernels.seats import Seat, pinned_seats, seats

_CPU = Path("/sys/devices/system/cpu")


def use_environment(name: str | None) -> None:
    """Choose the instruction set `name`, in any case (None keeps the best). Raises ConfigError for one that cannot run
    here."""
    if not name:
        return
    known = name.lower()
    if known not in isas():
        allowed = ", ".join(isas())
        raise ConfigError(f"OCTAVO_ISA: got {name!r} ({isa_note(known)}), allowed here: {allowed}")
    _native.set_isa(known)


def physical_cores(allowed: Sequence[int]) -> list[int]:
    """One CPU a physical core, of the CPUs in `allowed`, in order."""
    first: dict[str, int] = {}
    for cpu in sorted(allowed):
        try:
            core = (_CPU / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        first.setdefault(core, cpu)
    return list(first.values())


def default_threads() -> int:
    """One thread a physical core of the affinity mask, no more than the control groups' quota."""
    cores = len(physical_cores(sorted(os.sched_getaffinity(0))))
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def team_seats(*, threads: int | None = None, cpus: Sequence[int] | None = None) -> list[Seat]:
    """Where a team's threads sit. `cpus` pins every thread but the caller's, each to one.

    Raises ConfigError for a senseless count.
    """
    if threads is None:
        threads = len(cpus) if cpus else default_threads()
    if not 1 <= threads <= 1024:
        raise ConfigError(f"--threads: got {threads}, allowed: 1 to 1024")
    if cpus:
        return pinned_seats(threads, cpus, nodes_of())
    allowed = sorted(os.sched_getaffinity(0))
    return seats(threads, physical_cores(allowed), allowed, nodes_of())


def team_on(taken: Sequence[Seat]) -> Team:
    """The kernel team; the caller of a step is its thread 0, and stays on the CPUs it has."""
    return Team(len(taken), [list(seat.cpus) for seat in taken])


use_environment(os.environ.get("OCTAVO_ISA"))
