"""Threads: they agree, they park, they are counted by cores and quota."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from octavo.errors import ConfigError
from tests.child import child_env
from tests.ops.native_net import Net, native


def test_default_threads() -> None:
    cores = native.physical_cores(sorted(os.sched_getaffinity(0)))
    assert 1 <= native.default_threads() <= len(cores)
    team = native.team_on(native.team_seats())
    assert team.threads == native.default_threads()
    team.close()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="--threads"):
        native.team_seats(threads=0)
    with pytest.raises(ConfigError, match="OCTAVO_ISA"):
        native.use_environment("avx1024")


def test_the_instruction_set_may_be_written_in_capitals() -> None:
    before = native.isa()
    native.use_environment(before.upper())
    assert native.isa() == before


def test_pinned_team_runs() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    team = native.team_on(native.team_seats(cpus=cpus))
    assert team.threads == len(cpus)
    team.close()
    assert sorted(os.sched_getaffinity(0)) == cpus, "the caller keeps its mask"


def test_many_steps_and_threads() -> None:
    """More threads than cores, thousands of stages: nothing is lost, nothing hangs."""
    net = Net(threads=5, max_tokens=7)
    a = net.buffer("f32", 16)
    one = net.buffer("f32", 16)
    for _ in range(10):
        net.op("add", *net.view(a), *net.view(one), *net.view(a), 1.0)
    net.write(a, np.zeros((7, 16)))
    net.write(one, np.ones((7, 16)))
    for i in range(30):
        net.forward([7])
        if i % 10 == 0:
            time.sleep(0.003)  # parked by now
    assert (net.read(a, 7) == 300).all()
    net.close()


def test_an_idle_team_costs_nothing() -> None:
    code = (
        "import time, resource\n"
        "from octavo.kernels import native\n"
        "team = native.Team(2)\n"
        "time.sleep(0.1)\n"
        "before = time.process_time()\n"
        "time.sleep(1.0)\n"
        "print(time.process_time() - before)\n"
        "team.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_env(), check=True)
    assert float(done.stdout) < 0.01


def test_environment_chooses_the_isa() -> None:
    code = "from octavo.kernels import native; print(native.isa())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_env(OCTAVO_ISA="scalar"), check=True
    )
    assert done.stdout.strip() == "scalar"


def test_arena() -> None:
    arena = native.Arena(1 << 30)
    assert arena.nbytes == 1 << 30
    assert arena.address % (2 << 20) == 0
    assert arena.resident() == 0, "address space only"
    view = arena.view(4096, 16)
    view[:] = 7
    assert 0 < arena.resident() <= 2 << 20
    view[8:] = 0
    arena.touch(0, 4 << 20)
    assert arena.resident() == 4 << 20
    assert view.tolist() == [7] * 8 + [0] * 8, "touched is not written"
    view[:] = 7
    with pytest.raises(ValueError):
        arena.touch((1 << 30) - 4096, 8192)
    del arena
    assert (view == 7).all(), "a view keeps its arena"
    with pytest.raises(ValueError):
        native.Arena(100).view(90, 11)
