"""`--cpus`: what is allowed, and that a process keeps to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo.errors import ConfigError
from octavo.kernels.affinity import named_cpus
from tests.child import child_env


def test_names() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert named_cpus(None) is None
    assert named_cpus(str(allowed[-1])) == [allowed[-1]]
    with pytest.raises(ConfigError, match=rf"--cpus: got 100000, allowed: {allowed[0]}"):
        named_cpus("100000")
    with pytest.raises(ConfigError, match="--cpus: got '1-', allowed: numbers and ranges"):
        named_cpus("1-")


def test_a_process_keeps_to_them() -> None:
    last = max(os.sched_getaffinity(0))
    code = (
        "import os, sys, threading\n"
        "from octavo.kernels.affinity import keep_to\n"
        "keep_to(sys.argv[1])\n"
        "seen = []\n"
        "thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join()\n"
        "print(seen[0] == os.sched_getaffinity(0) == {int(sys.argv[1])})\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(last)], env=child_env(), capture_output=True, text=True, check=True, timeout=30
    )
    assert ran.stdout.strip() == "True"
