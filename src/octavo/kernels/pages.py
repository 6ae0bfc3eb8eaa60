"""How much of a mapping lies on 2 MiB pages (Linux, transparent huge pages). No NumPy.

Source: the kernel's admin-guide/mm/transhuge.rst and filesystems/proc.rst.
"""

from __future__ import annotations

from pathlib import Path

SMAPS = Path("/proc/self/smaps")
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MOST = 16 << 30
"""Bytes that are looked at: while the kernel counts the process can map nothing, and a first request would wait."""


def huge_pages(*, settings: Path = SETTINGS) -> tuple[str, Path]:
    """The setting for 2 MiB pages (always, madvise or never; "" where the system does not say), and its file."""
    # Newer kernels have a setting for each size, which may refer to the general one.
    for file in (settings / "hugepages-2048kB" / "enabled", settings / "enabled"):
        try:
            chosen = file.read_text().partition("[")[2].partition("]")[0]
        except OSError:
            continue
        if chosen and chosen != "inherit":
            return chosen, file
    return "", settings


def huge_bytes(address: int, nbytes: int, *, smaps: Path = SMAPS) -> int | None:
    """Bytes of [address, address + nbytes) on 2 MiB pages, None where the system does not say.

    The kernel walks every page of a mapping to answer: 1 ms where they are huge, 30 ms a GiB where they are not.
    """
    found, overlap, told = 0, 0, False
    try:
        with smaps.open("rb") as file:
            # Mappings come in order, and the kernel makes the text as it is read: the rest is not worth its time.
            for line in file:
                word, _, rest = line.partition(b" ")
                if word == b"AnonHugePages:" and overlap:
                    # Mappings of the same kind are merged: the huge pages of a longer one may be a neighbour's.
                    found += min(int(rest.split()[0]) * 1024, overlap)
                    told = True
                elif not word.endswith(b":"):
                    first, last = (int(text, 16) for text in word.split(b"-"))
                    if first >= address + nbytes:
                        break
                    overlap = max(0, min(last, address + nbytes) - max(first, address))
    except (OSError, ValueError, IndexError):
        return None
    return found if told else None


def told_of_pages(address: int, nbytes: int, *, settings: Path = SETTINGS, smaps: Path = SMAPS) -> str:
    """A sentence on the weights that lie at `address`; "" where the system does not say."""
    size = f"{nbytes / 2**20:,.0f} MiB"
    setting, file = huge_pages(settings=settings)
    if setting == "never":
        return f"{size}, none on 2 MiB pages, which are faster (as root: echo madvise > {file})"
    huge = huge_bytes(address, nbytes, smaps=smaps) if nbytes <= MOST else None
    return "" if huge is None else f"{size}, {huge / 2**20:,.0f} on 2 MiB pages"
