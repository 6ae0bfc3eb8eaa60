"""What the operating system says of the processor (Linux). No NumPy."""

from __future__ import annotations

import platform
import re
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
NODES = Path("/sys/devices/system/node")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_name() -> str:
    """The processor's name, else its architecture."""
    return _cpuinfo("model name", "Model") or platform.machine()


def cpu_flags() -> set[str]:
    """What the processor says it can do, in Linux's names; empty where the system does not tell."""
    return set(_cpuinfo("flags").split())


def _cpuinfo(*names: str) -> str:
    """The first CPU's entry of one of these names, "" for none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(names):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


def last_level_cache() -> int:
    """Bytes of the largest cache, 0 where it is not said."""
    sizes = [0]
    for path in CACHES.glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text[:-1]) * UNITS[text[-1:]])
        except (OSError, ValueError, KeyError):
            continue
    return max(sizes)


def cpu_list(text: str) -> list[int]:
    """ "0-3,8" as CPU numbers, in order. Raises ValueError."""
    cpus: list[int] = []
    for piece in text.strip().split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and (not last.isdigit() or int(last) < int(first))):
            raise ValueError(f"got {text!r}, allowed: numbers and ranges, as in 0-3,8")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def nodes_of(*, nodes: Path = NODES) -> dict[int, int]:
    """CPU -> its NUMA node; {} where the system does not say."""
    found: dict[int, int] = {}
    for path in nodes.glob("node*/cpulist"):
        try:
            cpus = cpu_list(path.read_text())
        except (OSError, ValueError):
            continue  # a node of memory alone has an empty list
        found |= dict.fromkeys(cpus, int(re.sub(r"\D", "", path.parent.name)))
    return found
