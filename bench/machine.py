"""What the operating system says about processes and the machine (Linux, /proc)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, []))
    return found


def pss_mib(pid: int) -> float:
    """Proportional set size summed over a process tree."""
    return sum(map(own_pss_mib, tree(pid)))


def own_pss_mib(pid: int) -> float:
    """Proportional set size of one process; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def open_files(pid: int) -> int:
    """Descriptors that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree, dead children included."""
    total = 0
    for one in tree(pid):
        try:
            total += sum(map(int, Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()[11:15]))
        except OSError:
            continue
    return total / TICKS


def busy_seconds() -> float:
    """Non-idle time of the whole machine, steal included: what others take shows in it."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return (sum(fields[:3]) + sum(fields[5:8])) / TICKS


def favoured() -> None:
    """Raised priority where that is allowed, for this process and those it starts: other work on the machine is not the
    figure, but server and client must be equals, or one starves the other."""
    try:
        os.nice(-10)
    except OSError:
        pass


@contextmanager
def foreign_share(*pids: int) -> Iterator[list[float]]:
    """Over the block: the share of all CPU time that neither these trees nor this process used."""
    found: list[float] = []

    def own() -> float:
        mine = sum(os.times()[:4])
        return mine + sum(cpu_seconds(p) for p in pids)

    busy, used, began = busy_seconds(), own(), time.monotonic()
    yield found
    wall = (time.monotonic() - began) * (os.cpu_count() or 1)
    found.append(max(0.0, (busy_seconds() - busy) - (own() - used)) / wall)


def disk_mb(path: Path) -> float:
    """Bytes allocated below a folder, in MB of 10^6."""
    total = 0
    for base, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(base, name)).st_blocks * 512
    return total / 1e6


def bandwidth(source: Path) -> dict[str, float] | None:
    """Compile and run bench/hwbw.c; None where no C compiler is at hand."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/hwbw"
        subprocess.run([compiler, "-O3", "-march=native", "-pthread", str(source), "-o", program], check=True)
        done = subprocess.run([program], check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, float] = json.loads(done.stdout)
    return found
