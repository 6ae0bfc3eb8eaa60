"""What the operating system says of the processor (Linux). No NumPy."""

from __future__ import annotations

import platform
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_name() -> str:
    """The processor's name, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


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
