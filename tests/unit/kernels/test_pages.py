"""What is said of 2 MiB pages, from made-up text and, where the system has them, of a real mapping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.kernels.pages import huge_bytes, huge_pages, told_of_pages

MIB = 1 << 20
START = 0x7F0000000000
NEVER = "none on 2 MiB pages, which are faster (as root: echo madvise > {file})"


def mapping(first: int, last: int, huge: int, name: str = "") -> str:
    """An entry of smaps, sizes in MiB from START."""
    return (
        f"{START + first * MIB:x}-{START + last * MIB:x} rw-p 00000000 00:00 0 {name}\n"
        f"Size: {(last - first) * 1024} kB\nRss: 4 kB\nAnonHugePages:{huge * 1024:10} kB\n"
        "VmFlags: rd wr mr mw me nr hg\n"
    )


@pytest.fixture
def smaps(tmp_path: Path) -> Path:
    path = tmp_path / "smaps"
    path.write_text(
        mapping(-50, -2, 40, "[heap: 1]")
        + mapping(-2, 8, 10)  # reaches over the beginning
        + mapping(8, 10, 0)
        + mapping(10, 64, 50)
        + mapping(64, 90, 26)
        + "not to be read\n"
    )
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    return tmp_path


def test_only_what_overlaps_counts(smaps: Path) -> None:
    assert huge_bytes(START, 60 * MIB, smaps=smaps) == (8 + 50) * MIB
    assert huge_bytes(START + 8 * MIB, 2 * MIB, smaps=smaps) == 0
    assert huge_bytes(START + 20 * MIB, MIB + 5, smaps=smaps) == MIB + 5
    assert huge_bytes(START - 60 * MIB, 5 * MIB, smaps=smaps) is None  # no such mapping


@pytest.mark.parametrize("text", ["", "garbage\n", f"{START:x}-zz rw\n", mapping(0, 9, 9).replace("AnonHuge", "Other")])
def test_a_system_that_does_not_say(tmp_path: Path, settings: Path, text: str) -> None:
    path = tmp_path / "smaps"
    path.write_text(text)
    assert huge_bytes(START, 5 * MIB, smaps=path) is None
    assert huge_bytes(START, 5 * MIB, smaps=tmp_path / "absent") is None
    assert told_of_pages(START, 5 * MIB, settings=settings, smaps=path) == ""


def test_the_setting(settings: Path) -> None:
    assert huge_pages(settings=settings / "absent")[0] == ""
    assert huge_pages(settings=settings) == ("madvise", settings / "enabled")
    own = settings / "hugepages-2048kB"
    own.mkdir()
    (own / "enabled").write_text("always [inherit] madvise never\n")
    assert huge_pages(settings=settings)[0] == "madvise"
    (own / "enabled").write_text("always inherit madvise [never]\n")
    assert huge_pages(settings=settings) == ("never", own / "enabled")


def test_what_is_too_large_is_not_counted(smaps: Path, settings: Path) -> None:
    assert told_of_pages(START, 17 << 30, settings=settings, smaps=smaps) == ""


def test_the_sentence(smaps: Path, settings: Path) -> None:
    assert told_of_pages(START, 60 * MIB, settings=settings, smaps=smaps) == "60 MiB, 58 on 2 MiB pages"
    (settings / "enabled").write_text("always madvise [never]\n")
    assert (
        told_of_pages(START, 60 * MIB, settings=settings, smaps=smaps)
        == f"60 MiB, {NEVER.format(file=settings / 'enabled')}"
    )


@pytest.mark.skipif(huge_pages()[0] not in ("always", "madvise"), reason="2 MiB pages are off here, or it is not said")
def test_a_real_mapping() -> None:
    native = pytest.importorskip("octavo._native", reason="the native module is not built")
    small = native.Arena(16 * MIB, False)
    small.fill(1)
    if huge_pages()[0] == "madvise":
        assert huge_bytes(small.address, 16 * MIB) == 0
    arena = native.Arena(16 * MIB)
    arena.fill(1)
    huge = huge_bytes(arena.address, 16 * MIB)
    assert huge is not None
    assert huge % (2 * MIB) == 0
    assert huge <= 16 * MIB  # how much depends on what memory is free in one piece
    flags = {address: "hg" in flags for address, flags in _flags()}
    assert flags[next(a for a in sorted(flags, reverse=True) if a <= arena.address)], "huge pages are asked for"


def _flags() -> Iterator[tuple[int, list[str]]]:
    """(first address, VmFlags) of every mapping of this process."""
    first = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "VmFlags:":
            yield first, rest.split()
        elif not word.endswith(":"):
            first = int(word.partition("-")[0], 16)
