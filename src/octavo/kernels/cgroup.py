"""What the control groups that hold this process allow it (Linux, versions 1 and 2). No NumPy.

A limit of any group from the process's own up to the mounted root binds, so the smallest counts. Source: the kernel's
admin-guide, cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
FILES = {
    ("cpu", 2): ("cpu.max",),
    ("cpu", 1): ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ("memory", 2): ("memory.max", "memory.current"),
    ("memory", 1): ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""(controller, version) -> the files of a group that together hold two numbers: a limit, and its period or use."""


def cpu_quota(*, root: Path = ROOT, own: Path = OWN) -> float | None:
    """CPUs' worth of time, None where no group sets a limit.

    `root`: where groups are mounted. `own`: which groups the process is in, written as /proc/self/cgroup is.
    """
    limits = (quota / period for _, quota, period in _found("cpu", root, own) if quota > 0 and period > 0)
    return min(limits, default=None)


def memory_limits(*, root: Path = ROOT, own: Path = OWN) -> list[tuple[int, int]]:
    """(limit, use) in bytes of every group that has a limit. Parameters as in `cpu_quota`.

    Use is without cached files that the kernel gives up first: a model's own file, just fetched or read, must not count
    against its weights. Version 1 writes "no limit" as a number larger than any memory.
    """
    limits = []
    for folder, limit, use in _found("memory", root, own):
        if limit >= 0 and use >= 0:
            limits.append((limit, max(0, use - _idle_files(folder))))
    return limits


def _idle_files(folder: Path) -> int:
    """Bytes of cached files of a group and those in it that were not used lately; 0 where it is not told."""
    try:
        lines = (folder / "memory.stat").read_text(errors="replace").splitlines()
        stat = dict(line.split(" ", 1) for line in lines)
        return max(0, int(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    except (OSError, ValueError):
        return 0


def _found(controller: str, root: Path, own: Path) -> Iterator[tuple[Path, int, int]]:
    """Each group that has them, and its two numbers."""
    for folder, version in _folders(controller, root, own):
        try:
            words = " ".join((folder / name).read_text(errors="replace") for name in FILES[controller, version]).split()
            first, second = map(int, words)
        except (OSError, ValueError):
            continue  # no such group, or no limit: "max"
        yield folder, first, second


def _folders(controller: str, root: Path, own: Path) -> Iterator[tuple[Path, int]]:
    """Where the process's groups and their parents may be, each with its version."""
    # Version 2 is mounted at the root, or in `unified` beside version 1, which mounts each controller by its name.
    paths = dict.fromkeys(((root, 2), (root / "unified", 2), (root / controller, 1)), PurePosixPath("/"))
    try:
        lines = own.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        names, _, path = line.partition(":")[2].partition(":")
        # A group outside the process's namespace is written with "..": it cannot be seen from here.
        if not path.startswith("/") or ".." in path.split("/"):
            continue
        if not names:
            paths |= dict.fromkeys(((root, 2), (root / "unified", 2)), PurePosixPath(path))
        elif controller in names.split(","):
            paths |= dict.fromkeys(((root / controller, 1), (root / names, 1)), PurePosixPath(path))
    for (mount, version), group in paths.items():
        # A container may find its own group mounted as the root, yet be told its path outside: only the root exists.
        for part in (group, *group.parents):
            yield mount / part.relative_to("/"), version
