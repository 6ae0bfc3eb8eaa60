"""R01: two servers with disjoint `--cpus` never share a core, in any of their threads and processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.bench.process import Running, free_port, running
from octavo.kernels.machine import cpu_list
from tests.child import child_env
from tests.tiny import write_tiny

pytest.importorskip("octavo._native", reason="the native module is not built")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_disjoint_servers(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", "llama")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with _serving(model, first) as one, _serving(model, second) as other:
        for server, cpu in ((one, first), (other, second)):
            masks = _masks(server.pid)
            assert len(masks) > 4, "a front half and an engine"
            assert set(masks.values()) == {(cpu,)}, masks


def test_a_cpu_that_is_not_ours_is_refused_at_once(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", "llama")
    command = [sys.executable, "-m", "octavo", "serve", str(model), "--cpus", "99999"]
    ran = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=30)
    assert ran.returncode != 0
    assert "--cpus: got 99999, allowed: " in ran.stderr
    assert "Traceback" not in ran.stderr


@contextlib.contextmanager
def _serving(model: Path, cpu: int) -> Iterator[Running]:
    port = free_port()
    words = ["serve", str(model), "--port", str(port), "--served-model-name", "m", "--cpus", str(cpu)]
    with running([sys.executable, "-m", "octavo", *words], port=port, model="m", env=child_env()) as server:
        yield server


def _masks(pid: int) -> dict[str, tuple[int, ...]]:
    """The CPUs of every thread of a process and of those it started."""
    found = {}
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        line = next(line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
        found[f"{pid}/{status.parent.name}"] = tuple(cpu_list(line.partition(":")[2]))
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found |= _masks(int(child))
    return found
