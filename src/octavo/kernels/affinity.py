"""The CPUs that a process keeps to, of `--cpus`. No NumPy."""

from __future__ import annotations

import os

from octavo.errors import ConfigError
from octavo.kernels.machine import cpu_list


def named_cpus(text: str | None) -> list[int] | None:
    """ "0-3,8" as CPU numbers, all of which this process may use. Raises ConfigError."""
    if text is None:
        return None
    try:
        cpus = cpu_list(text)
    except ValueError as error:
        raise ConfigError(f"--cpus: {error}") from None
    allowed = sorted(os.sched_getaffinity(0))
    for cpu in cpus:
        if cpu not in allowed:
            raise ConfigError(f"--cpus: got {cpu}, allowed: {', '.join(map(str, allowed))}")
    return cpus


def keep_to(text: str | None) -> None:
    """The calling thread, and every thread and process that it starts from now on, run on these CPUs only.

    At the start of a process that is the whole of it. Raises ConfigError.
    """
    if (cpus := named_cpus(text)) is not None:
        os.sched_setaffinity(0, cpus)
