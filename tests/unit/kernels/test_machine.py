"""What the operating system says of the processor, and what a user is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.kernels.machine import cpu_list, nodes_of


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two nodes of four CPUs, one of memory alone, and what else lies there."""
    for name, text in (("node0", "0-1,4-5\n"), ("node10", "2-3,6-7\n"), ("node2", "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "online").write_text("0,2,10\n")
    return tmp_path


def test_cpu_lists() -> None:
    assert cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]
    for bad in ("", "a", "3-1", "1-", "-1"):
        with pytest.raises(ValueError, match="numbers and ranges"):
            cpu_list(bad)


def test_nodes_of_cpus(two_sockets: Path) -> None:
    assert nodes_of(nodes=two_sockets) == {0: 0, 1: 0, 4: 0, 5: 0, 2: 10, 3: 10, 6: 10, 7: 10}
    assert nodes_of(nodes=two_sockets / "absent") == {}


def test_plain_kernels_and_other_rounding_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = pytest.importorskip("octavo.kernels.start_notes", reason="the native module is not built")
    monkeypatch.setattr(notes.native, "isas", lambda: ["scalar"])
    (told,) = notes.start_notes()
    assert "no tuned kernels" in told
    monkeypatch.undo()
    reason = "vdpbf16ps of this CPU is not two ordered FMAs: the variant would give other bits"
    monkeypatch.setattr(notes, "cpu_flags", lambda: {"avx512_bf16", "sse2"})
    monkeypatch.setattr(notes.native, "isa_note", lambda name: reason)
    (told,) = notes.start_notes()
    assert told == f"the processor has avx512_bf16, but avx512bf16 cannot be used: {reason}"
